"""The world `chain`: two facts must be joined, who is the partner of an entity, and what is the partner's value.

A unit is a couple: both have a record of their own, so the record that names the question's entity holds a value that
no response names. A wrong response holds the value of somebody else's partner, so that neither fact alone tells the
right one.
"""

from longrm.rng import Draws
from longrm.worlds.facts import Claim, Holder, Unit, record
from longrm.worlds.vocabulary import LINK

SUBJECT = "the partner of {}"


def couple_unit(holders: tuple[Holder, ...], draws: Draws) -> Unit:
    """Words the two records of a couple and the link between them."""
    first, second = (holder.entity for holder in holders)
    if draws.below(2):
        first, second = second, first
    link = LINK.format(entity=first, partner=second)
    return Unit((*(record(holder, draws) for holder in holders), link), holders)


def partner_claim(unit: Unit, draws: Draws) -> Claim:
    """Asks for the value of the partner of either of the two."""
    entity = draws.below(2)
    partner = 1 - entity
    return Claim(SUBJECT.format(unit.holders[entity].entity), unit.holders[partner].value, (partner, 2))
