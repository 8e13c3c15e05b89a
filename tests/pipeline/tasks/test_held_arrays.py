"""Arrays that a function returns and changes later, and those that nobody can change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import windrow
from windrow.pipeline.tasks.held_arrays import copy_held, count_references


class Buffered:
    """Returns the same memory for every batch."""

    def __init__(self, how: str) -> None:
        self.how = how
        self.memory = np.zeros(1_000)
        self.result: dict[str, Any] = {}

    def __call__(self, batch: dict[str, Any]) -> Any:
        rows = len(batch["id"])
        out = self.memory[:rows]
        np.multiply(batch["id"], 2.0, out=out)
        if self.how == "view":
            return {"x": out}
        if self.how == "view of a view":
            return {"x": out[:].reshape(rows)}
        if self.how == "buffer":
            return {"x": np.frombuffer(self.memory.data, count=rows)}
        if self.how == "frame":
            return pd.DataFrame({"x": out}, copy=False)
        if self.how == "table":
            return pa.table({"x": pa.array(out)})
        if self.how in ("arrow", "series", "memory"):
            makers = {"arrow": pa.array, "series": lambda x: pd.Series(x, copy=False), "memory": memoryview}
            return {"x": makers[self.how](out)}
        if self.how == "tensor":
            import torch

            return {"x": torch.from_numpy(self.memory)[:rows]}
        if self.how == "batch":
            batch["x"] = out
            return {"x": batch["x"]}
        if rows != len(self.result.get("x", [])):
            self.result["x"] = np.zeros(rows)
        np.multiply(batch["id"], 2.0, out=self.result["x"])
        return self.result


@pytest.mark.parametrize("shuffles", [False, True])
@pytest.mark.parametrize(
    "how",
    [
        "view",
        "view of a view",
        "buffer",
        "tensor",
        "batch",
        "result",
        "frame",
        "table",
        "arrow",
        "series",
        "memory",
    ],
)
def test_a_function_may_return_the_same_memory_for_every_batch(how: str, shuffles: bool) -> None:
    ds = windrow.range(1_000).repartition(3).map_batches(Buffered, fn_constructor_args=(how,), batch_size=50)
    pipe = ds.window().options(executor="threads")
    found = pipe.random_shuffle_each_window(seed=7) if shuffles else pipe
    values = np.concatenate([batch["x"] for batch in found.iter_batches(batch_size=30)])
    assert np.sort(values).tolist() == (np.arange(1_000) * 2.0).tolist()


def _is_kept(make: Any) -> dict[str, bool]:
    """Whether each array of a result is used as it is."""
    batch = {"a": np.arange(4)}
    result = make(batch)
    counted = count_references(result)
    found = copy_held(result, counted, batch, {"a": batch["a"]} if "a" in batch else {})
    return {name: found[name] is result[name] for name in result}


def test_what_nobody_else_holds_is_not_copied() -> None:
    def add(batch: dict[str, Any]) -> Mapping[str, Any]:
        doubled = batch["a"] * 2
        batch["b"] = doubled
        return batch

    assert _is_kept(add) == {"a": True, "b": True}
    fresh = {"x": True, "view": True, "rest": False}
    assert _is_kept(lambda batch: {"x": np.ones(9), "view": np.ones(9)[1:], "rest": np.ones(9)[8:]}) == fresh
    constant = np.ones(4)
    assert _is_kept(lambda batch: {"x": constant, "view": constant[1:], "own": batch["a"][1:]}) == {
        "x": False,
        "view": False,
        "own": False,
    }


@pytest.mark.parametrize("batch_format", ["numpy", "pyarrow"])
@pytest.mark.parametrize("shards", [1, 2])
def test_writing_into_batches_changes_neither_the_source_nor_later_epochs(
    batch_format: Any, shards: int
) -> None:
    mine = np.arange(8.0)
    ds = windrow.from_arrow(pa.table({"x": pa.array(mine)})).map_batches(
        lambda batch: batch, batch_format=batch_format
    )
    for shard in ds.repeat(2).options(executor="threads").split(shards):
        with shard:
            epochs: list[list[list[float]]] = []
            for epoch in shard.iter_epochs():
                epochs.append([])
                for batch in epoch.iter_batches(batch_size=4 // shards):
                    epochs[-1].append(batch["x"].tolist())
                    batch["x"] -= 100
            assert epochs[0] == epochs[1]
            assert len(epochs[0]) == 2
    assert mine.tolist() == list(range(8))


@pytest.mark.parametrize("shards", [1, 2])
def test_a_type_that_cannot_be_moved_is_refused_with_any_number_of_shards(shards: int) -> None:
    def encode(batch: dict[str, Any]) -> pa.Table:
        ends = pa.array([len(batch["id"])], pa.int32())
        return pa.table({"x": pa.RunEndEncodedArray.from_arrays(ends, pa.array([1]))})

    ds = windrow.range(100).repartition(2).map_batches(encode).repeat(1).options(executor="threads")
    for shard in ds.split(shards):
        with shard, pytest.raises(windrow.WindrowError, match="column 'x' of type run_end_encoded"):
            next(shard.iter_batches(batch_size=10, batch_format="pyarrow"))
