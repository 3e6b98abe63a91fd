"""The registry of worlds: a new one is one file with its rules and words, and one entry here."""

from collections.abc import Mapping

from longrm.worlds.chain_world import ChainWorld
from longrm.worlds.facts import WorldRules
from longrm.worlds.record_world import RecordWorld

WORLDS: Mapping[str, WorldRules] = {"records": RecordWorld(), "chain": ChainWorld()}
"""The worlds by name."""
