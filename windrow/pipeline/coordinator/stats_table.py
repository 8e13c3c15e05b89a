"""Formats the statistics of a shard and its run as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from windrow.core.byte_sizes import format_bytes
from windrow.core.terminal_text import escape_controls
from windrow.pipeline.coordinator.phases import LABELS, TrainerStats

if TYPE_CHECKING:
    from windrow.pipeline.coordinator.stats import RunStats, Stats

__all__ = ["format_stats"]

_MAX_TRAINERS = 16


def format_stats(stats: Stats) -> str:
    """Return the statistics as lines; the last one says what limits the run, and what to change."""
    one = stats.trainer
    if stats.loader_workers:
        return escape_controls(f"shard {stats.shard}: {stats.bottleneck.sentence}")
    epochs = "1 epoch" if stats.epochs == 1 else f"{stats.epochs:,} epochs"
    lines = [
        f"shard {stats.shard}: {epochs}, {one.batches:,} batches, {one.rows:,} rows, {format_bytes(one.bytes)}",
        f"rates     {_all_rates(stats.trainers)}",
        *_run_lines(stats.run),
    ]
    if stats.trainers:
        lines += ["", *_trainer_table(stats.trainers)]
    return "\n".join(map(escape_controls, [*lines, "", stats.bottleneck.sentence]))


def _all_rates(trainers: Sequence[TrainerStats]) -> str:
    rows = sum(one.rows_per_second for one in trainers)
    size = sum(one.bytes_per_second for one in trainers)
    who = "" if len(trainers) == 1 else f" over {len(trainers):,} trainers"
    return f"{rows:,.0f} rows/s, {size / 1e6:,.1f} MB/s{who}"


def _run_lines(run: RunStats) -> Iterator[str]:
    dropped = f"; {run.dropped_windows:,} windows dropped" if run.dropped_windows else ""
    yield (
        f"memory    {format_bytes(run.held_bytes)} of {format_bytes(run.memory_bytes)} held, at most "
        f"{format_bytes(run.peak_held_bytes)}; estimated in all {format_bytes(run.estimated_bytes)}{dropped}"
    )
    profile = run.profile
    total = sum(profile.phases.values())
    shares = [
        f"{LABELS[name]} {profile.phases[name] / total:.0%}" for name in LABELS if profile.phases.get(name)
    ]
    parts = f": {', '.join(shares)}" if shares else ""
    yield f"tasks     {run.tasks:,} on {run.workers:,} workers, {total:,.1f} s{parts}"
    if profile.requests:
        yield (
            f"storage   {profile.requests:,} requests, {format_bytes(profile.requested_bytes)}, "
            f"{profile.retries:,} repeated"
        )
    if run.cache_hits or run.cache_bytes:
        blocks = run.cache_hits + run.cache_misses
        yield f"cache     {run.cache_hits:,} of {blocks:,} blocks found, {format_bytes(run.cache_bytes)} held"
    if run.corrupt_blocks:
        names = ", ".join(run.corrupt_blocks)
        yield f"skipped   {len(run.corrupt_blocks)} corrupt blocks, {run.corrupt_rows:,} rows: {names}"


def _trainer_table(trainers: Sequence[TrainerStats]) -> Iterator[str]:
    """One line a trainer: what it worked, and what it waited for, in seconds."""
    phases = [name for name in LABELS if any(one.waits.get(name, 0) >= 0.005 for one in trainers)]
    head = ["trainer", "rows", "rows/s", "worked s", "waited s", *phases]
    rows = [head]
    for one in trainers[:_MAX_TRAINERS]:
        waits = [f"{one.waits.get(name, 0.0):,.2f}" for name in phases]
        rates = [f"{one.rows:,}", f"{one.rows_per_second:,.0f}"]
        rows.append([str(one.shard), *rates, f"{one.work_seconds:,.2f}", f"{one.wait_seconds:,.2f}", *waits])
    widths = [max(len(row[at]) for row in rows) for at in range(len(head))]
    for row in rows:
        yield "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
    if len(trainers) > _MAX_TRAINERS:
        yield f"and {len(trainers) - _MAX_TRAINERS:,} more"
