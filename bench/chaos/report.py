"""The report of a chaos run as text."""

from __future__ import annotations

from bench.chaos.analysis import Report
from bench.chaos.kill_plan import KINDS
from bench.object_store import describe_spilled
from bench.table import align_table, write_cell

__all__ = ["draw_report"]

_SHOWN = 20


def draw_report(report: Report) -> str:
    """Kills, recovery, throughput and differences."""
    rows = [
        (
            kind,
            str(report.kills.get(kind, 0)),
            str(len(report.recovery_seconds.get(kind, ()))),
            write_cell(report.median(kind), "{:.1f}"),
            write_cell(report.longest(kind), "{:.1f}"),
            write_cell(report.ray_median(kind), "{:.1f}"),
            write_cell(report.ray_longest(kind), "{:.1f}"),
        )
        for kind in KINDS
    ]
    heads = ("fault", "times", "shards affected", "median s", "longest s", "Ray median s", "Ray longest s")
    baseline, disturbed = report.rows_per_second["baseline"], report.rows_per_second["disturbed"]
    lines = [
        align_table(heads, rows, ("fault",)),
        f"seed {report.seed}: {report.killed} kills in {report.seconds:.0f} s; "
        f"{report.steps:,} batches of {report.epochs + 1} epochs, {report.reread_steps} read again by "
        f"restarted trainers; {describe_spilled(report.spilled_bytes)} MiB spilled",
        f"longest wait for a batch: {report.longest_wait_seconds:.1f} s",
        f"rows a second: {baseline:,.0f} undisturbed, {disturbed:,.0f} disturbed",
        f"differences from the undisturbed run: {len(report.differences)}",
        *(f"  {difference}" for difference in report.differences[:_SHOWN]),
        *(f"error: {error}" for error in report.errors),
    ]
    return "\n".join(lines)
