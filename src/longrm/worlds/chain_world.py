from dataclasses import dataclass

from longrm.rng import Draws
from longrm.worlds.facts import Claim, Holder, Unit, record
from longrm.worlds.vocabulary import LINK, RECORDS


@dataclass(frozen=True, slots=True)
class ChainWorld:
    """Two facts must be joined: who is the partner of an entity, and what is the partner's value.

    A unit is a couple: both have a record of their own, so the record that names the question's entity holds
    a value that no response names. A wrong response holds the value of somebody else's partner, so that
    neither fact alone tells the right one.
    """

    sentences: int = 3
    entities: int = 2
    apart: bool = False
    subject: str = "the partner of {}"
    forms: tuple[str, ...] = (*RECORDS, LINK)

    def unit(self, holders: tuple[Holder, ...], draws: Draws) -> Unit:
        """Words the two records of a couple and the link between them."""
        first, second = (holder.entity for holder in holders)
        if draws.below(2):
            first, second = second, first
        link = LINK.format(entity=first, partner=second)
        return Unit((*(record(holder, draws) for holder in holders), link), holders)

    def claim(self, unit: Unit, draws: Draws) -> Claim:
        """Asks for the value of the partner of either of the two."""
        asked = draws.below(2)
        partner = 1 - asked
        subject = self.subject.format(unit.holders[asked].entity)
        return Claim(subject, unit.holders[partner].value, (partner, 2))
