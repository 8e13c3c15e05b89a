"""Plans the legs of a mixture, and keeps the latest ones."""

from __future__ import annotations

from windrow.pipeline.plan.cursor import Cursor, MixturePoint
from windrow.pipeline.plan.joined_leg import JoinedLeg
from windrow.pipeline.plan.leg import Leg
from windrow.pipeline.plan.leg_order import LegOrder
from windrow.pipeline.plan.mixture import Mixture
from windrow.pipeline.plan.mixture_leg import MixtureLeg

# of those that readers of one process are in at the same time
KEPT_LEGS = 8


def plan_leg(
    mixture: Mixture, point: MixturePoint, row: int, step_rows: int, order: LegOrder | None = None
) -> Leg:
    """The leg from a row on. The latest ones are kept, since a run, its shards and states plan the same."""
    kept: dict[tuple[MixturePoint, int, int, LegOrder | None], Leg] = mixture.legs
    found = kept.get(key := (point, row, step_rows, order))
    if found is None:
        if mixture.joined is not None:
            found = JoinedLeg(mixture, point, row, step_rows)
        else:
            found = MixtureLeg(mixture, point, row, step_rows, order)
        while len(kept) >= KEPT_LEGS:
            kept.pop(next(iter(kept)), None)
        kept[key] = found
    return found


def leg_at(mixture: Mixture, cursor: Cursor, step_rows: int = 1) -> Leg:
    """The leg from a cursor on."""
    return plan_leg(mixture, cursor.mixed or mixture.start, cursor.row // mixture.row_tokens, step_rows)


def as_mixture_leg(leg: Leg) -> MixtureLeg:
    """A leg of a mixture that joins no documents."""
    assert isinstance(leg, MixtureLeg), "documents are joined"
    return leg
