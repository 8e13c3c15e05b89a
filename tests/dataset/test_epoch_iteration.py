"""Iterators over all epochs of a pipeline."""

from __future__ import annotations

import gc
import threading
from itertools import islice
from typing import Any

import pyarrow as pa
import pytest

from tests.dataset.example_sources import TableReader, TableSource, make_source
from windrow.core.errors import PlanError, TransformError
from windrow.dataset.dataset import Dataset, DatasetPipeline
from windrow.dataset.logical_plan import LogicalPlan


def _pipe(*sizes: int, times: int | None) -> DatasetPipeline:
    return DatasetPipeline(LogicalPlan(make_source(*sizes)).repeated(times).configured(executor="threads"))


def _rows(batches: Any) -> list[list[int]]:
    return [batch["x"].tolist() for batch in batches]


def test_epochs_follow_each_other() -> None:
    batches = _pipe(3, 2, times=2).iter_batches(batch_size=3)
    assert len(batches) == 4
    assert batches.start == 0
    assert _rows(batches) == [[0, 1, 2], [3, 4]] * 2
    assert list(batches) == []


def test_rows_and_last_batches() -> None:
    pipe = _pipe(3, 2, times=2)
    assert [row["x"] for row in pipe.iter_rows()] == [0, 1, 2, 3, 4] * 2
    assert _rows(pipe.iter_batches(batch_size=3, drop_last=True)) == [[0, 1, 2]] * 2


@pytest.mark.parametrize("arguments", [{"batch_size": 2**62 - 1}, {"batch_size": 5, "prefetch_batches": 0}])
def test_arguments_at_their_bounds(arguments: dict[str, Any]) -> None:
    assert _rows(_pipe(3, 2, times=2).iter_batches(**arguments)) == [[0, 1, 2, 3, 4]] * 2


def test_torch_batches_of_rows_without_columns() -> None:
    source = TableSource(TableReader((pa.table({"x": range(5)}).select([]),)))
    assert list(Dataset(LogicalPlan(source)).iter_torch_batches(batch_size=2)) == [{}, {}, {}]


def test_endless_pipeline_repeats_and_has_no_length() -> None:
    batches = _pipe(3, times=None).iter_batches(batch_size=2)
    with pytest.raises(TypeError, match="repeats forever"):
        len(batches)
    assert _rows(islice(batches, 5)) == [[0, 1], [2], [0, 1], [2], [0, 1]]


def test_an_epoch_outlives_the_iterator_that_yielded_it() -> None:
    pipe = _pipe(*[500] * 8, times=2)
    for _ in range(20):
        rows = [row["x"] for row in next(pipe.iter_epochs()).iter_rows()]
        assert rows == list(range(4_000))


def test_a_closed_iterator_ends() -> None:
    batches = _pipe(3, 2, times=2).iter_batches(batch_size=2)
    next(batches)
    batches.close()
    assert list(batches) == []


@pytest.mark.parametrize("sizes", [(0,), (0, 0)])
@pytest.mark.parametrize("times", [1, 3, None])
def test_no_rows_give_no_batches(sizes: tuple[int, ...], times: int | None) -> None:
    assert list(_pipe(*sizes, times=times).iter_batches()) == []


def test_endless_pipeline_without_a_full_batch_ends() -> None:
    assert list(_pipe(3, times=None).iter_batches(batch_size=4, drop_last=True)) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size=0 must be"),
        ({"batch_size": True}, "batch_size=True must be"),
        ({"batch_size": 2.5}, "batch_size=2.5 must be"),
        ({"batch_size": 2**62}, "batch_size=4611686018427387904 must be"),
        ({"batch_format": "polars"}, "batch_format='polars'"),
        ({"prefetch_batches": -1}, "prefetch_batches=-1"),
        ({"drop_last": "no"}, "drop_last='no'"),
    ],
)
def test_wrong_arguments_raise_at_the_call(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        _pipe(3, times=1).iter_batches(**arguments)
    with pytest.raises(PlanError, match=message):
        Dataset(LogicalPlan(make_source(3))).iter_batches(**arguments)


def test_error_of_a_transform_ends_the_iterator() -> None:
    def fail(batch: Any) -> Any:
        raise ZeroDivisionError("no")

    batches = _pipe(3, times=2).map_batches(fail).iter_batches()
    with pytest.raises(TransformError, match=r"table 0.*ZeroDivisionError"):
        next(batches)
    assert list(batches) == []


@pytest.mark.parametrize("how", ["dropped", "closed", "ended"])
def test_no_thread_outlives_the_iterator(how: str) -> None:
    before = set(threading.enumerate())
    batches = _pipe(3, 3, times=None).iter_batches(batch_size=2)
    next(batches)
    if how == "dropped":
        del batches
        gc.collect()
    elif how == "closed":
        batches.close()
    else:
        list(_pipe(3, 3, times=2).iter_batches(batch_size=2))
        batches.close()
    # a foreign thread that runs a finalizer appears as a dummy thread, which cannot be joined
    left = {
        thread
        for thread in set(threading.enumerate()) - before
        if not isinstance(thread, threading._DummyThread)
    }
    for thread in left:
        # the finalizer closes the shard in another thread, shortly afterwards
        thread.join(20 if how == "dropped" else 0)
    assert [thread for thread in left if thread.is_alive()] == []
