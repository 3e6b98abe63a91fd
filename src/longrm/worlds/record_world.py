"""The world `records`: one fact answers, such as "The access code of Alora is anchor.".

A wrong response holds the value of another entity of the same context. The two entities of a pair are drawn alike
among entities with different values: with no look at the fact either may be the right one.
"""

from longrm.rng import Draws
from longrm.worlds.facts import Claim, Holder, Unit, record


def record_unit(holders: tuple[Holder, ...], draws: Draws) -> Unit:
    """Words the one record of an entity."""
    return Unit((record(holders[0], draws),), holders)


def record_claim(unit: Unit, draws: Draws) -> Claim:
    """Asks for the value of the entity."""
    del draws  # there is but one
    return Claim(unit.holders[0].entity, unit.holders[0].value, (0,))
