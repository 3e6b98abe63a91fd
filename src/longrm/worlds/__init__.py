"""Generated worlds: contexts whose facts, questions, right and wrong responses are known by construction."""

from longrm.worlds.generation import WORLDS, Plan, generate, group
from longrm.worlds.vocabulary import VERSION
from longrm.worlds.words import words

__all__ = ["VERSION", "WORLDS", "Plan", "generate", "group", "words"]
