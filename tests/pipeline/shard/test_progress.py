"""The progress line."""

from __future__ import annotations

from typing import Any, cast

import pytest

from windrow.pipeline.coordinator.stats import RunStats
from windrow.pipeline.executors.base import EpochFacts
from windrow.pipeline.shard import progress
from windrow.shuffle.order.shard_assignment import ShardAssignment


def facts(total: int | None) -> EpochFacts:
    return EpochFacts(2, 0, 180, ShardAssignment(4, 100), 1000, total)


def describe(total: int | None, epochs: int | None, run: RunStats, **values: Any) -> str:
    line = progress.ProgressLine(cast("Any", None), facts(total), 0, epochs)
    return line._describe(run, **values)


def test_progress_line_shows_the_position() -> None:
    run = RunStats(
        held_bytes=2**30,
        memory_bytes=2**31,
        windows_ready={(2, 40): 1.0, (2, 41): 0.999, (2, 42): 0.0},
    )
    line = describe(10_000, 10, run, window=40, step=17, bytes_per_second=2.31e9, wait_share=0.004)
    assert line == (
        "epoch 3/10 · window 41/180, next 99 % ready · step 17/25 · 2.31 GB/s · trainer waits 0.4% · 1.0 GiB of 2.0 GiB"
    )


def test_unknown_counts_and_endless_chains_leave_out_their_ends() -> None:
    line = describe(None, None, RunStats(), window=0, step=1, bytes_per_second=0, wait_share=0)
    assert line.startswith("epoch 3 · window 1/180 · step 1 · ")


@pytest.mark.parametrize(
    ("ready", "shown"),
    [({}, None), ({(2, 179): 1.0}, None), ({(2, 40): 1.0}, None), ({(2, 179): 1.0, (3, 0): 1.0}, 100)],
)
def test_next_window_is_announced_across_epochs(
    ready: dict[tuple[int, int], float], shown: int | None
) -> None:
    run = RunStats(windows_ready=ready)
    line = describe(None, None, run, window=179, step=1, bytes_per_second=0, wait_share=0)
    assert line.startswith(
        f"epoch 3 · window 180/180{'' if shown is None else f', next {shown} % ready'} · step"
    )


@pytest.mark.parametrize("asked", [True, False])
def test_progress_is_shown_on_request(asked: bool) -> None:
    assert progress.is_shown(asked) is asked


def test_auto_shows_nothing_without_a_terminal() -> None:
    assert progress.is_shown("auto") is False
