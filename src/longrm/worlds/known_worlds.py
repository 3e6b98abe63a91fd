"""The registry of worlds."""

from collections.abc import Mapping

from longrm.worlds.chain_world import SUBJECT, couple_unit, partner_claim
from longrm.worlds.facts import WorldRules
from longrm.worlds.record_world import record_claim, record_unit
from longrm.worlds.vocabulary import LINK, RECORDS

WORLDS: Mapping[str, WorldRules] = {
    "records": WorldRules(record_unit, record_claim, forms=RECORDS, anywhere=True),
    "chain": WorldRules(
        couple_unit, partner_claim, forms=(*RECORDS, LINK), sentences=3, entities=2, subject=SUBJECT
    ),
}
"""The worlds by name: a new one is one file with its two functions and its words, and one entry."""
