"""Rows that stay in their order: cut into runs and joined again, they are the rows of the window."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.shuffle.examples import by_day
from windrow.core.errors import WindrowError
from windrow.shuffle.order.ordered_rows import (
    OrderedOutputs,
    OrderedRows,
    are_in_order,
    cut_into_runs,
    join_run,
)
from windrow.shuffle.order.runs import WindowRuns
from windrow.shuffle.order.shard_assignment import ShardAssignment


def layout_of(first: int, stop: int, *, batch: int = 3, slices: int = 2, shards: int = 1) -> WindowRuns:
    assignment = ShardAssignment(shards, batch, False, False, 0, 1, 1)
    return WindowRuns(
        assignment=assignment,
        first_row=first,
        stop_row=stop,
        total=stop,
        shards=tuple(range(shards)),
        run_rows=2 * batch,
        slices=slices,
    )


@by_day(30)
@given(
    first=st.integers(0, 20),
    blocks=st.lists(st.integers(0, 25), min_size=1, max_size=5),
    batch=st.integers(1, 5),
    slices=st.integers(1, 3),
    data=st.data(),
)
def test_runs_hold_the_rows_of_a_window(
    first: int, blocks: list[int], batch: int, slices: int, data: st.DataObject
) -> None:
    layout = layout_of(first, first + sum(blocks), batch=batch, slices=slices)
    assert are_in_order([layout])
    held: list[list[OrderedRows]] = [[] for _ in range(slices)]
    at = first
    for rows in blocks:
        numbers = list(range(at, at + rows))
        table = pa.table({"x": numbers, "text": [str(x) for x in numbers]})
        for of_slice, found in zip(held, cut_into_runs(table, at, layout), strict=True):
            of_slice.extend(found)
        at += rows
    for run in layout.runs(0):
        outputs = OrderedOutputs(data.draw(st.permutations(held[run.slice])))
        start = data.draw(st.integers(0, run.rows - 1))
        joined = join_run(outputs, run, slice(start, run.rows))
        expected = list(range(run.place + start, run.place + run.rows))
        assert joined["x"].to_pylist() == expected
        assert joined["text"].to_pylist() == [str(x) for x in expected]


def test_a_run_without_all_of_its_rows_is_an_error() -> None:
    layout = layout_of(0, 12, slices=1)
    (pieces,) = cut_into_runs(pa.table({"x": range(8)}), 0, layout)
    assert not are_in_order([layout_of(0, 12, shards=2)])
    first, second = layout.runs(0)
    assert join_run(OrderedOutputs(pieces), first, slice(0, 6)).num_rows == 6
    with pytest.raises(WindrowError, match="run 1 needs 6 places"):
        join_run(OrderedOutputs(pieces), second, slice(0, 6))


def test_a_view_of_few_rows_does_not_keep_its_table() -> None:
    table = pa.table({"x": range(100_000)})
    ((piece,),) = cut_into_runs(table.slice(10, 5), 0, layout_of(0, 5, slices=1))
    assert piece.rows.get_total_buffer_size() < 1_000
    assert piece.rows["x"].to_pylist() == [10, 11, 12, 13, 14]
