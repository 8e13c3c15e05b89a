"""options(profile=False): the same rows and counts, and nothing is measured."""

from __future__ import annotations

import time
from typing import Any

import pyarrow as pa
import pytest

import windrow
from windrow.core import phase_clock
from windrow.core.errors import PlanError


def _read(executor: str, **options: Any) -> tuple[list[list[int]], windrow.Shard]:
    def slowly(table: pa.Table) -> pa.Table:
        time.sleep(0.02)
        return table

    pipe = windrow.range(400, block_rows=50).map_batches(slowly, batch_format="pyarrow").repeat(2)
    pipe = pipe.random_shuffle_each_window(seed=7).options(executor=executor, progress=False, **options)
    shard = pipe.iterator()
    return [batch["id"].tolist() for batch in shard.iter_batches(batch_size=32)], shard


@pytest.mark.parametrize("executor", ["threads", "ray"])
@pytest.mark.ray_at_night
def test_counts_and_total_waits_remain(executor: str, request: pytest.FixtureRequest) -> None:
    if executor == "ray":
        request.getfixturevalue("ray_local")
    expected, profiled = _read(executor)
    with profiled:
        assert profiled.stats().waits.get("transform", 0) > 0
    batches, shard = _read(executor, profile=False)
    with shard:
        assert batches == expected
        stats = shard.stats()
        assert (stats.rows, stats.batches, stats.run.tasks > 0) == (400, len(batches), True)
        # the tasks sleep for 0.16 s in all
        assert stats.wait_seconds > 0.02
        assert set(stats.waits) <= {"start", "other"}
        assert not stats.run.profile.phases
        assert not (*stats.spans, *stats.run.spans, *stats.run.trainer_spans)
        with pytest.raises(PlanError, match=r"without options\(profile=False\)"):
            shard.timeline()


def test_no_clock_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    entered: list[str] = []
    enter = phase_clock.PhaseClock.enter

    def note(clock: phase_clock.PhaseClock, name: str, **more: bool) -> None:
        entered.append(name)
        enter(clock, name, **more)

    monkeypatch.setattr(phase_clock.PhaseClock, "enter", note)
    _read("threads", profile=False)[1].close()
    assert not entered
    _read("threads")[1].close()
    assert entered


def test_the_sentence_says_how_to_measure() -> None:
    _, shard = _read("threads", profile=False)
    with shard:
        found = shard.stats().bottleneck
    assert found.cause == "other"
    assert found.sentence.endswith("What for was not measured: options(profile=True) measures it.")
