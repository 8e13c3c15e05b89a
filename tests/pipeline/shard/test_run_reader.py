"""The shard's reader: which consumers have priority, how runs become whole batches, which conversions are used."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import windrow
from windrow.core.errors import TransformError
from windrow.pipeline.executors.base import Pace
from windrow.pipeline.executors.threads_job import ThreadsClient
from windrow.pipeline.executors.workers import WorkerPool
from windrow.pipeline.shard.consumer import CoreTime
from windrow.pipeline.shard.run_reader import align_runs
from windrow.pipeline.tasks.transforms import as_one_batch


def note(pace: Pace, *, worked: float, waited: float, computed: float = 0.0) -> None:
    for _ in range(4):
        pace.add(worked=worked / 4, waited=waited / 4, computed=computed / 4)
    pace.end_run()


def test_a_consumer_that_works_is_served_first_and_one_that_only_waits_is_not() -> None:
    pace = Pace()
    for _ in range(10):
        note(pace, worked=0.1, waited=1.0)
    assert pace.works, "assumed in the first window"
    pace.begin()
    assert not pace.works
    for _ in range(10):
        note(pace, worked=0.1, waited=1.0)
    assert not pace.works
    for _ in range(10):
        note(pace, worked=1.0, waited=0.1)
    assert pace.works


def test_runs_of_the_first_window_go_before_what_is_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pq.write_table(pa.table({"x": np.arange(300)}), tmp_path / "x.parquet", row_group_size=100)
    ds = windrow.read_parquet(str(tmp_path), target_block_bytes=1).window(blocks_per_window=1)
    served: list[bool] = []
    submit = ThreadsClient.submit

    def note_served(shard_client: ThreadsClient, place: Callable[[], Any], pace: Pace) -> Any:
        # a consumer that only waits has no priority of its own
        for _ in range(10):
            note(pace, worked=0.1, waited=1.0)
        served.append(pace.works)
        return submit(shard_client, place, pace)

    monkeypatch.setattr(ThreadsClient, "submit", note_served)
    with ds.repeat(2).options(executor="threads").iterator() as shard:
        for _ in range(2):
            assert sum(len(batch["x"]) for batch in shard.iter_batches(100)) == 300
    assert served == [True, False, False] + [False] * 3


def test_a_hiccup_changes_nothing() -> None:
    pace = Pace()
    pace.begin()
    for _ in range(10):
        note(pace, worked=1.0, waited=0.1)
    note(pace, worked=0.1, waited=60.0)
    assert pace.works


def test_a_consumer_computes_while_it_keeps_a_core_busy_and_hardly_waits() -> None:
    pace = Pace()
    pace.begin()
    assert not pace.computes
    for _ in range(10):
        note(pace, worked=1.0, waited=0.02, computed=0.98)
    assert pace.computes
    for _ in range(4):
        note(pace, worked=1.0, waited=0.5, computed=1.0)  # a core less was too little
    assert not pace.computes
    for _ in range(20):
        note(pace, worked=1.0, waited=0.02, computed=0.1)  # another machine computes for it
    assert not pace.computes
    assert pace.works


def test_the_core_time_is_that_of_the_thread_which_began_to_count() -> None:
    core = CoreTime()
    while core.seconds() < 0.01:
        pass
    seconds: list[float] = []
    thread = threading.Thread(target=lambda: seconds.append(core.seconds()))
    thread.start()
    thread.join()
    assert seconds == [0.0]
    before = core.seconds()
    core.begin()
    assert core.seconds() < before


def test_a_computing_consumer_is_left_a_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(pa.table({"x": np.arange(60_000)}), tmp_path / "x.parquet", row_group_size=1000)
    left: list[bool] = []
    leave = WorkerPool.reserve_core

    def note_left(pool: WorkerPool, consumer: int, computes: bool) -> None:
        left.append(computes)
        leave(pool, consumer, computes)

    monkeypatch.setattr(WorkerPool, "reserve_core", note_left)
    # more CPU time than possible, so that the consumer counts as computing on any machine
    monkeypatch.setattr(CoreTime, "seconds", lambda core: 3600.0)
    ds = windrow.read_parquet(tmp_path, target_block_bytes=1).window(blocks_per_window=6)
    (shard,) = ds.repeat(2).random_shuffle_each_window(seed=3).options(executor="threads").split(1)
    for epoch in shard.iter_epochs():
        for _ in epoch.iter_batches(batch_size=1000):
            pass
    assert True in left
    shard.close()
    assert left[-1] is False


def make_runs(sizes: list[int]) -> list[pa.RecordBatch]:
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return [
        pa.record_batch({"x": pa.array(range(start, start + size), pa.int64())})
        for start, size in zip(starts, sizes, strict=True)
    ]


@given(st.lists(st.integers(0, 20), max_size=12), st.integers(1, 9))
def test_whole_batches_have_the_same_rows(sizes: list[int], batch_rows: int) -> None:
    spans = list(align_runs(make_runs(sizes), batch_rows))
    assert [x for span in spans for x in span["x"].to_pylist()] == list(range(sum(sizes)))
    assert all(span.num_rows % batch_rows == 0 for span in spans[:-1])
    assert all(span.num_rows for span in spans)


def test_aligned_runs_are_passed_on_without_a_copy() -> None:
    runs = make_runs([6, 9, 4])
    spans = list(align_runs(runs, 3))
    addresses = [batch.column(0).buffers()[1].address for batch in runs]
    assert [span.column(0).buffers()[1].address for span in spans[:3]] == addresses
    assert [span.num_rows for span in spans] == [6, 9, 3, 1]


def test_only_the_batch_that_straddles_is_copied() -> None:
    runs = make_runs([5, 7])
    spans = list(align_runs(runs, 4))
    assert [span.num_rows for span in spans] == [4, 4, 4]
    first, _, last = (span.column(0).buffers()[1].address for span in spans)
    assert first == runs[0].column(0).buffers()[1].address
    assert last == runs[1].column(0).buffers()[1].address


def test_batches_larger_than_every_run() -> None:
    assert [span.num_rows for span in align_runs(make_runs([3, 3, 3, 3]), 10)] == [10, 2]


def test_nothing_is_requested_early() -> None:
    taken = []

    def runs() -> object:
        for run in make_runs([4, 4, 4]):
            taken.append(run)
            yield run

    next(align_runs(runs(), 4))  # type: ignore[arg-type]
    assert len(taken) == 1


def test_rows_that_arrow_cannot_join_raise_and_are_not_lost() -> None:
    class Unjoined:
        num_rows = 5

        def combine_chunks(self) -> pa.Table:
            return pa.Table.from_batches(make_runs([3, 2]))

    with pytest.raises(TransformError, match="window 3: the 5 rows returned are too large"):
        as_one_batch(Unjoined(), "window 3")
    assert as_one_batch(pa.Table.from_batches(make_runs([3, 2])), "window 3").num_rows == 5


def test_a_run_of_whole_batches_is_handed_on_itself() -> None:
    runs = [pa.record_batch({"x": np.arange(rows)}) for rows in (6, 4, 3, 5, 6)]
    spans = list(align_runs(iter(runs), 2))
    assert [span is run for span, run in zip(spans, runs, strict=False)][:2] == [True, True]
    assert sum(span is run for span in spans for run in runs) == 3


ROWS = 1_200_000


@pytest.mark.parametrize("batch_size", [7_000, 550_000])
def test_eagerly_converted_batches_equal_lazily_converted_ones(tmp_path: Path, batch_size: int) -> None:
    pq.write_table(pa.table({"x": np.arange(ROWS)}), tmp_path / "x.parquet", row_group_size=33_333)
    ds = windrow.read_parquet(tmp_path, target_block_bytes=1).window(blocks_per_window=21)
    pipe = ds.random_shuffle_each_window(seed=3).options(executor="threads")
    early, late = (
        [batch["x"].to_numpy() if batch_format == "pandas" else batch["x"] for batch in batches]
        for batch_format, batches in (
            (name, pipe.iter_batches(batch_size, batch_format=name)) for name in ("numpy", "pandas")
        )
    )
    tensors = [batch["x"].numpy() for batch in pipe.iter_torch_batches(batch_size)]
    assert [len(batch) for batch in early] == [len(batch) for batch in late]
    assert all(map(np.array_equal, early, late))
    assert all(map(np.array_equal, early, tensors))
    assert np.array_equal(np.sort(np.concatenate(early)), np.arange(ROWS))


def test_an_unknown_column_is_answered_with_a_similar_one(tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"row": [1], **{f"x{number}": [1] for number in range(20)}}), tmp_path / "rows.parquet"
    )
    rows = windrow.read_parquet(tmp_path / "rows.parquet")
    for iterate in (rows.iter_batches, rows.iter_torch_batches):
        with pytest.raises(windrow.PlanError, match=r"columns= has no column 'rows': did you mean 'row'\?$"):
            next(iterate(columns=["rows"]))


def test_columns_that_cannot_become_tensors_raise_wherever_batches_are_made(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": np.arange(50)}), tmp_path / "x.parquet")
    pipe = (
        windrow.read_parquet(tmp_path)
        .repeat(1)
        .random_shuffle_each_window(seed=3)
        .options(executor="threads")
    )
    with pytest.raises(windrow.PlanError, match="tensors cannot hold 'x'"):
        list(pipe.map_batches(lambda batch: {"x": batch["x"].astype(str)}).iter_torch_batches(10))


def test_what_a_trainer_is_done_with_is_freed_by_another_thread(tmp_path: Path) -> None:
    """torch releases the GIL for each freed tensor, so a trainer would wait to reacquire it."""
    wide = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(64 * 100_000)), 64)
    pq.write_table(pa.table({"x": wide}), tmp_path / "x.parquet")
    freed: list[str] = []
    pipe = windrow.read_parquet(tmp_path).window().options(executor="threads", progress=False)
    for batch in pipe.iter_batches(batch_size=10_000):
        weakref.finalize(batch["x"], lambda: freed.append(threading.current_thread().name))
        time.sleep(0.01)
    del batch
    assert len(freed) == 10
    # of the last runs there is none after that would be taken
    assert freed.count(threading.main_thread().name) <= 5, freed


def test_a_reader_that_is_closed_holds_no_run(tmp_path: Path) -> None:
    wide = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(64 * 100_000)), 64)
    pq.write_table(pa.table({"x": wide}), tmp_path / "x.parquet")
    pipe = windrow.read_parquet(tmp_path).window().options(executor="threads", progress=False)
    batches = pipe.iter_batches(batch_size=10_000)
    released = weakref.ref(next(batches)["x"])
    batches.close()
    assert released() is None
