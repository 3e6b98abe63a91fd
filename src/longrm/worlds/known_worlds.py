"""The registry of worlds."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from longrm.data.tokenizing import Tokenizer
from longrm.types import Comparison
from longrm.worlds.chain_world import SUBJECT, couple_unit, partner_claim
from longrm.worlds.facts import WorldRules
from longrm.worlds.prose.prose_world import ProseWorld
from longrm.worlds.prose.tasks.citation_task import citation
from longrm.worlds.prose.tasks.contradiction_task import contradiction
from longrm.worlds.prose.tasks.counting_task import counting
from longrm.worlds.prose.tasks.instruction_task import instruction
from longrm.worlds.prose.tasks.latest_update_task import latest_update
from longrm.worlds.prose.tasks.many_facts_task import many_facts
from longrm.worlds.prose.tasks.single_fact_task import single_fact
from longrm.worlds.prose.tasks.two_hops_task import two_hops
from longrm.worlds.prose.tasks.who_said_it_task import who_said_it
from longrm.worlds.record_world import record_claim, record_unit
from longrm.worlds.vocabulary import LINK, RECORDS

if TYPE_CHECKING:  # plans name worlds, and worlds read plans
    from longrm.worlds.generator import WorldPlan


class World(Protocol):
    """What makes groups of comparisons.

    Attributes:
        asks: What is asked, for lists.
        similar_to: The benchmark of the field that is like it, for lists.
        words: What the `words` tokenizer must know of it; prose is not for that tokenizer, and lists none.
    """

    @property
    def asks(self) -> str: ...  # noqa: D102 - described above

    @property
    def similar_to(self) -> str: ...  # noqa: D102 - described above

    @property
    def words(self) -> tuple[str, ...]: ...  # noqa: D102 - described above

    def check(self, plan: "WorldPlan") -> None:
        """Refuses a plan that this world cannot make, by a `ConfigError`."""

    def group(self, plan: "WorldPlan", index: int, tokenizer: Tokenizer) -> list[Comparison]:
        """Makes the comparisons about context number `index`; see `longrm.worlds.generator.group`."""
        ...


WORLDS: Mapping[str, World] = {
    "records": WorldRules(
        record_unit, record_claim, forms=RECORDS, anywhere=True, similar_to="RULER NIAH multi-key"
    ),
    "chain": WorldRules(
        couple_unit,
        partner_claim,
        forms=(*RECORDS, LINK),
        sentences=3,
        entities=2,
        subject=SUBJECT,
        asks="the access code of a subject's partner",
        similar_to="RULER variable tracking",
    ),
    "single-fact": ProseWorld(single_fact, "one fact among near distractors", "RULER NIAH multi-key"),
    "many-facts": ProseWorld(
        many_facts,
        "one fact among distractors that grow with the length",
        "RULER NIAH multi-key",
        share=1 / 3,
    ),
    "checklist": ProseWorld(
        single_fact, "three facts at once, of which one is wrong", "IF-RewardBench", near=6, parts=3
    ),
    "two-hops": ProseWorld(two_hops, "two facts that must be joined", "BABILong, RULER variable tracking"),
    "latest-update": ProseWorld(
        latest_update, "the latest of several updates", "LongMemEval knowledge update, MRCR", near=2
    ),
    "counting": ProseWorld(counting, "how many sentences say the same", "RULER aggregation", near=2),
    "who-said-it": ProseWorld(who_said_it, "the speaker of a remark", "QuALITY, LongMemEval"),
    "contradiction": ProseWorld(contradiction, "a claim that the text contradicts", "SummaC"),
    "instruction": ProseWorld(
        instruction, "a rule far back that responses must obey", "IFEval, at a distance"
    ),
    "citation": ProseWorld(citation, "the number of the entry that says something", "ALCE, LongCite"),
}
"""The worlds by name: a new one is one file, with what it says and asks, and one entry."""
