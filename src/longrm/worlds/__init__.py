"""Generated worlds: contexts whose facts, questions, right and wrong responses are known by construction."""

from longrm.worlds.generator import WorldPlan, generate, group
from longrm.worlds.known_worlds import WORLDS
from longrm.worlds.prose.texts import TEXTS
from longrm.worlds.vocabulary import VERSION
from longrm.worlds.words_tokenizer import words_tokenizer

__all__ = ["TEXTS", "VERSION", "WORLDS", "WorldPlan", "generate", "group", "words_tokenizer"]
