"""Objects that never arrive without an error from Ray: their window is computed again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import ray

import windrow
from tests.end_to_end.data import write_numbers
from tests.end_to_end.reading import column, read_pass
from windrow.pipeline.coordinator.requests import Ask
from windrow.pipeline.coordinator.scheduling.shard_tracker import Key
from windrow.pipeline.executors import window_fetch
from windrow.pipeline.executors.ray.fetch_thread import Fetcher

pytestmark = pytest.mark.timeout(90)

ROWS = 4_000


@pytest.mark.parametrize("error", [ray.exceptions.GetTimeoutError, ray.exceptions.ObjectLostError])
def test_objects_that_never_arrive_are_computed_again(
    ray_local: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    path = write_numbers(tmp_path / "x.parquet", ROWS, row_group_size=500)
    ds = windrow.read_parquet(str(path), target_block_bytes=1)
    pipe = ds.window(blocks_per_window=2).random_shuffle_each_window(seed=3)
    expected = column(read_pass(pipe.options(executor="threads").iterator(), 100))
    # the references of the first attempt at the second window
    lost_refs: set[Any] = set()
    lost_attempts: list[str] = []
    load, poll = Fetcher._load, Fetcher._poll

    def forget(self: Fetcher, reply: Any, *arguments: Any) -> Any:
        refs = {ref for handles in reply.outputs.values() for ref in handles}
        if len(lost_attempts) == 1 and not lost_refs:
            lost_refs.update(refs)
        if refs & lost_refs:
            raise error("ab" * 28, "", "") if error is ray.exceptions.ObjectLostError else error
        return load(self, reply, *arguments)

    def note(self: Fetcher, key: Key, ask: Ask) -> Any:
        if ask.lost or (key == (0, 1) and not lost_attempts):
            lost_attempts.append(ask.lost)
        return poll(self, key, ask)

    monkeypatch.setattr(window_fetch, "_LOSSES_PER_ATTEMPT", 2)
    monkeypatch.setattr(Fetcher, "_load", forget)
    monkeypatch.setattr(Fetcher, "_poll", note)
    with pipe.options(executor="ray").iterator() as shard:
        assert column(read_pass(shard, 100)) == expected
        assert shard.stats().run.dropped_windows == 1
    assert len(lost_attempts) == 2
    assert lost_refs
