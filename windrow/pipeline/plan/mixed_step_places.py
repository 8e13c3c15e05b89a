"""Where the rows of a source's window go in a mixture whose steps are divided by cost."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from windrow.pipeline.plan.mixture import MixtureLeg, NeededWindow
from windrow.pipeline.plan.window_places import WindowPlan
from windrow.shuffle.order.divided_rounds import DividedRounds, lay_out_rounds
from windrow.shuffle.order.mixed_steps import SourceRows, divide_source
from windrow.shuffle.order.round_runs import RoundRuns
from windrow.shuffle.order.shard_assignment import ShardAssignment

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


def divide_rows_of_source(
    leg: MixtureLeg,
    needed: NeededWindow,
    rows: Ints,
    measures: Floats,
    assignment: ShardAssignment,
    layouts: Sequence[RoundRuns],
) -> tuple[tuple[DividedRounds, ...], Ints]:
    """Divide the rows of a source's window, which are given by the mixture's row and the measure of each.

    ``layouts`` are those of the rounds without costs. Returns what `lay_out_rounds` does.
    """
    assert assignment.balance is not None, "rows are divided by cost"
    own = SourceRows(
        needed.source,
        leg.rows_before,
        rows,
        costs=assignment.balance.costs(measures),
        is_shared=np.zeros(len(rows), np.bool_),
    )
    divided = divide_source(assignment, own, leg.stop, leg.mixture.round_rows)
    return lay_out_rounds(_as_divided(layouts), divided, own.costs, measures.astype(np.float64), None)


def find_measures(plan: WindowPlan, measures: Sequence[Floats | None]) -> Floats:
    """(rows,) what each stored row of a window measures, given those of every block."""
    found = [measures[block] for block in plan.blocks.tolist()]
    known = [each for each in found if each is not None]
    assert len(known) == len(found), "rows are measured before they are placed"
    return np.concatenate([np.zeros(0, np.float32), *known])


def _as_divided(layouts: Sequence[RoundRuns]) -> list[DividedRounds]:
    none = np.zeros((0, 2), np.int64)
    return [
        DividedRounds(
            each.round,
            each.round_rows,
            each.first_round,
            each.stop_round,
            each.first_row,
            each.stop_row,
            copies=none,
        )
        for each in layouts
    ]
