"""The registry of worlds."""

from longrm.worlds.prose import balanced_tasks, tasks
from longrm.worlds.prose.prose_world import ProseWorld
from longrm.worlds.prose.tool_calls import tool_call
from longrm.worlds.sentence_world import (
    PARTNER,
    SentenceWorld,
    couple_unit,
    partner_claim,
    record_claim,
    record_unit,
)
from longrm.worlds.vocabulary import LINK, RECORDS

WORLDS: dict[str, SentenceWorld | ProseWorld] = {
    "records": SentenceWorld(
        record_unit, record_claim, forms=RECORDS, anywhere=True, similar_to="RULER NIAH multi-key"
    ),
    "chain": SentenceWorld(
        couple_unit,
        partner_claim,
        forms=(*RECORDS, LINK),
        sentences=3,
        entities=2,
        subject=PARTNER,
        asks="the access code of a subject's partner",
        similar_to="RULER variable tracking",
    ),
    "exchange": ProseWorld(
        balanced_tasks.exchange, "who gave what to whom, one fact", "RULER NIAH multi-key", mixed=True
    ),
    "joined-facts": ProseWorld(
        balanced_tasks.joined_facts,
        "two facts that must be joined, in any order and at any distance",
        "BABILong, RULER variable tracking",
        near=2,
        mixed=True,
    ),
    "dated-update": ProseWorld(
        balanced_tasks.dated_update,
        "the later of two dated updates, in any order",
        "LongMemEval knowledge update",
        near=2,
        mixed=True,
    ),
    "single-fact": ProseWorld(tasks.single_fact, "one fact among near distractors", "RULER NIAH multi-key"),
    "many-facts": ProseWorld(
        tasks.many_facts,
        "one fact among distractors that grow with the length",
        "RULER NIAH multi-key",
        share=1 / 3,
    ),
    "checklist": ProseWorld(
        tasks.single_fact,
        "three facts at once, of which one is wrong",
        "IF-RewardBench",
        near=6,
        parts=3,
        most_responses=2,
    ),
    "two-hops": ProseWorld(
        tasks.two_hops, "two facts that must be joined", "BABILong, RULER variable tracking"
    ),
    "latest-update": ProseWorld(
        tasks.latest_update, "the latest of several updates", "LongMemEval knowledge update, MRCR", near=2
    ),
    "counting": ProseWorld(tasks.counting, "how many sentences say the same", "RULER aggregation", near=2),
    "who-said-it": ProseWorld(tasks.who_said_it, "the speaker of a remark", "QuALITY, LongMemEval"),
    "contradiction": ProseWorld(tasks.contradiction, "a claim that the text contradicts", "SummaC"),
    "instruction": ProseWorld(
        tasks.instruction, "a rule far back that responses must obey", "IFEval, at a distance"
    ),
    "citation": ProseWorld(tasks.citation, "the number of the entry that says something", "ALCE, LongCite"),
    "tool-call": ProseWorld(
        tool_call,
        "tool calls, of which the wrong ones have one error",
        "BFCL, FC-RewardBench",
        near=2,
        most_responses=2,
    ),
}
"""The worlds by name: a new one is one function that draws what it states and asks, and one entry."""
