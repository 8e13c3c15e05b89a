"""Runs regrouped into whole batches, without a copy where that is possible."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.core.errors import TransformError
from windrow.pipeline.delivery.batch_spans import align_runs, one_batch


def make_runs(sizes: list[int]) -> list[pa.RecordBatch]:
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return [
        pa.record_batch({"x": pa.array(range(start, start + size), pa.int64())})
        for start, size in zip(starts, sizes, strict=True)
    ]


@given(st.lists(st.integers(0, 20), max_size=12), st.integers(1, 9))
def test_whole_batches_of_the_same_rows(sizes: list[int], batch_rows: int) -> None:
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


def test_nothing_is_asked_for_before_it_is_needed() -> None:
    taken = []

    def runs() -> object:
        for run in make_runs([4, 4, 4]):
            taken.append(run)
            yield run

    next(align_runs(runs(), 4))  # type: ignore[arg-type]
    assert len(taken) == 1


def test_rows_that_arrow_cannot_join_are_refused_not_lost() -> None:
    class Unjoined:
        num_rows = 5

        def combine_chunks(self) -> pa.Table:
            return pa.Table.from_batches(make_runs([3, 2]))

    with pytest.raises(TransformError, match="window 3: the 5 rows returned are too large"):
        one_batch(Unjoined(), "window 3")
    assert one_batch(pa.Table.from_batches(make_runs([3, 2])), "window 3").num_rows == 5
