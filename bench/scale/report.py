"""Tables of the scale simulation."""

from __future__ import annotations

from collections.abc import Sequence

from bench.scale.planning import PlanningCost
from bench.scale.run import Outcome
from bench.scale.settings import Setting
from bench.scale.validation import Ratio
from bench.table import align_table, write_cell

__all__ = ["draw_outcomes", "draw_planning", "draw_ratios"]

_HEADS = (
    "setting",
    "GB/s",
    "s/epoch",
    "first rows s",
    "trainers idle %",
    "node GB",
    "store GB",
    "tasks/window",
    "objects/window",
    "object MB",
    "coordinator %",
    "driver ms/task",
    "sent/minimum",
    "bottleneck",
)
_RIVALS = (
    "Ray Datasets reached 8.18 GB/s and Petastorm 2.16 on 1.5 TB, 16 nodes and 2 windows (measured by "
    "Ray's authors); the rows above are simulated"
)


def draw_outcomes(outcomes: Sequence[tuple[Setting, str, Outcome]]) -> str:
    """One line per simulated run, and the utilisation of each resource."""
    lines = [_write_outcome(setting, trainers, outcome) for setting, trainers, outcome in outcomes]
    busy = [
        f"{setting.name}, {trainers}: "
        + ", ".join(f"{name} {share:.0%}" for name, share in outcome.busy.items())
        + f"; {outcome.slices} slices"
        for setting, trainers, outcome in outcomes
    ]
    return "\n".join([align_table(_HEADS, lines, {"setting", "bottleneck"}), _RIVALS, "busy:", *busy])


def _write_outcome(setting: Setting, trainers: str, outcome: Outcome) -> tuple[str, ...]:
    must = outcome.min_crossed_share
    seconds = outcome.epoch_seconds or setting.decoded_bytes / outcome.bytes_per_second
    return (
        f"{setting.name}, {trainers}",
        f"{outcome.bytes_per_second / 1e9:.1f}",
        f"{seconds:.0f}",
        f"{outcome.first_rows_seconds:.0f}",
        f"{100 * outcome.idle_share:.1f}",
        f"{outcome.node_peak_bytes / 1e9:.0f}",
        f"{outcome.store_peak_bytes / 1e9:.0f} of {outcome.store_bytes / 1e9:.0f}",
        f"{outcome.tasks_per_window:,.0f}",
        f"{outcome.objects_per_window:,.0f}",
        f"{outcome.object_bytes / 1e6:.1f}",
        f"{100 * outcome.driver_share:.0f}",
        f"{1e3 * outcome.driver_seconds / outcome.tasks:.2f}",
        write_cell(outcome.crossed_share / must if must else None, "{:.2f}"),
        outcome.bottleneck,
    )


def draw_planning(costs: Sequence[PlanningCost]) -> str:
    """Table of planning costs."""
    rows = [
        (f"{cost.row_groups:,}", f"{cost.seconds:.2f}", f"{cost.memory_bytes / 1e6:.0f}", f"{cost.tasks:,}")
        for cost in costs
    ]
    return align_table(("row groups", "s to the first task", "MB", "tasks at once"), rows, set())


def draw_ratios(ratios: Sequence[Ratio]) -> str:
    """Table of predicted and measured epoch times."""
    rows = [
        (
            one.system,
            str(one.windows),
            f"{one.predicted:.2f}",
            f"{one.measured:.2f}",
            f"{one.ratio:.2f}",
            f"{one.cores:.2f}",
        )
        for one in ratios
    ]
    heads = ("system", "windows", "predicted s", "measured s", "ratio", "free cores")
    return align_table(heads, rows, {"system"})
