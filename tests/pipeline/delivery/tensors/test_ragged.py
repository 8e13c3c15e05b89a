"""List columns as matrices, padded or nested tensors, or values and offsets; all equal the input lists."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import windrow
from windrow import Pad, PlanError, Ragged
from windrow.pipeline.delivery.tensors.column_tensors import TensorSpec, to_tensors
from windrow.pipeline.delivery.tensors.ragged import RaggedFormat, RaggedSpec

LISTS = st.lists(st.lists(st.integers(-100, 100), max_size=6), max_size=8)
TYPES = st.sampled_from([pa.int32(), pa.int64(), pa.float32(), pa.int8()])


def _convert(column: pa.Array, kind: Any, **arguments: Any) -> Any:
    batch = pa.record_batch({"key": pa.array(range(len(column)), pa.int64()), "x": column})
    return to_tensors(batch, TensorSpec(ragged=RaggedSpec(kind), **arguments))


@given(LISTS, TYPES, st.booleans(), st.integers(0, 3))
def test_every_format_equals_the_lists(
    rows: list[list[int]], arrow_type: pa.DataType, large: bool, skipped: int
) -> None:
    make = pa.large_list if large else pa.list_
    column = pa.array([[1, 2, 3]] * skipped + rows, make(arrow_type)).slice(skipped)
    values, offsets = _convert(column, "offsets")["x"]
    assert offsets.dtype == torch.int64
    assert [values[a:b].tolist() for a, b in itertools.pairwise(offsets)] == rows
    longest = max(map(len, rows), default=0)
    for side in ("right", "left"):
        found = _convert(column, {"x": Pad(value=-7, side=side, mask="mask")})
        assert list(found) == ["key", "x", "mask"]
        fill = [[-7] * (longest - len(row)) for row in rows]
        expected = [
            [*row, *more] if side == "right" else [*more, *row] for row, more in zip(rows, fill, strict=True)
        ]
        assert found["x"].tolist() == expected
        assert found["x"].shape == found["mask"].shape == (len(rows), longest)
        assert [x[m].tolist() for x, m in zip(found["x"], found["mask"], strict=True)] == rows
    short = _convert(column, Pad(length=2, truncate=True))["x"]
    assert short.tolist() == [([*row, 0, 0])[:2] for row in rows]
    last = _convert(column, Pad(length=2, truncate=True, side="left"))["x"]
    assert last.tolist() == [([0, 0, *row[:2]])[-2:] for row in rows]


@pytest.mark.filterwarnings("default")
def test_nested_tensors() -> None:
    nested = _convert(pa.array([[1, 2], [], [3]], pa.list_(pa.int64())), "nested")["x"]
    assert nested.layout == torch.jagged
    assert [row.tolist() for row in nested.unbind()] == [[1, 2], [], [3]]


def test_lists_of_one_length_are_a_matrix() -> None:
    column = pa.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], pa.list_(pa.float32()))
    found = _convert(column, None, dtypes={"x": torch.float64})["x"]
    assert (found.dtype, found.tolist()) == (torch.float64, [[1, 2], [3, 4], [5, 6]])
    pairs = pa.array([[[1, 2]], [[3, 4], [5, 6]]], pa.list_(pa.list_(pa.int64(), 2)))
    values, offsets = _convert(pairs, "offsets")["x"]
    assert (values.tolist(), offsets.tolist()) == ([[1, 2], [3, 4], [5, 6]], [0, 1, 3])
    assert _convert(pairs, "pad")["x"].shape == (2, 2, 2)
    assert _convert(pairs.slice(1), None)["x"].tolist() == [[[3, 4], [5, 6]]]


def test_dtypes_apply_to_values_and_padding() -> None:
    column = pa.array([[1, 2], [3]], pa.list_(pa.int32()))
    assert _convert(column, "pad", dtypes=torch.float32)["x"].dtype == torch.float32
    assert _convert(column, "offsets", dtypes={"x": torch.int16})["x"].values.dtype == torch.int16
    with pytest.raises(PlanError, match=r"Pad\(value=0\.5\) of column 'x' is not a value of torch\.int32"):
        _convert(column, Pad(value=0.5))
    assert _convert(column, Pad(value=0.5), dtypes=torch.float64)["x"].tolist() == [[1, 2], [3, 0.5]]


def test_columns_of_the_same_memory_become_separate_tensors() -> None:
    column = pa.array([[1, 2], [3]], pa.list_(pa.int64()))
    batch = pa.record_batch({"a": column, "b": column})
    found = to_tensors(batch, TensorSpec(ragged=RaggedSpec("offsets")))
    found["a"].values[0] = 9
    assert found["b"].values.tolist() == [1, 2, 3]


@pytest.fixture
def pipe(tmp_path: Path) -> windrow.DatasetPipeline:
    rows = [list(range(key % 5)) for key in range(100)]
    pairs = [[key, -key] for key in range(100)]
    table = pa.table({"key": range(100), "tokens": rows, "pair": pairs})
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=30)
    pipe = windrow.read_parquet(str(tmp_path)).window(blocks_per_window=2).repeat(2)
    return pipe.random_shuffle_each_window(seed=3).options(executor="threads", progress=False)


@pytest.mark.parametrize("ragged", ["offsets", "pad", Pad(length=4), {"tokens": "nested"}])
def test_batches_of_a_pipeline(pipe: windrow.DatasetPipeline, ragged: Any) -> None:
    for batch in pipe.iter_torch_batches(
        batch_size=16, ragged={"tokens": ragged} if ragged == "pad" else ragged
    ):
        keys, tokens = batch["key"].tolist(), batch["tokens"]
        if isinstance(tokens, Ragged):
            found = [
                tokens.values[a:b].tolist() for a, b in zip(tokens.offsets, tokens.offsets[1:], strict=False)
            ]
        elif tokens.is_nested:
            found = [row.tolist() for row in tokens.unbind()]
        else:
            found = [row[: key % 5].tolist() for row, key in zip(tokens, keys, strict=True)]
        assert found == [list(range(key % 5)) for key in keys]
        if isinstance(ragged, dict):
            assert batch["pair"].tolist() == [[key, -key] for key in keys]


def test_lists_of_several_lengths_need_a_format(pipe: windrow.DatasetPipeline) -> None:
    message = (
        r"the lists of column 'tokens' have between 0 and 4 values, so they are not the rows of one tensor: "
        r"give ragged=\{'tokens': \.\.\.\} with 'pad'"
    )
    with pytest.raises(PlanError, match=message):
        list(pipe.iter_torch_batches(batch_size=50))


def test_one_length_holds_for_all_batches() -> None:
    """Each batch alone would be a matrix."""
    rows = [{"x": [1, 2]}, {"x": [1, 2]}, {"x": [1, 2, 3]}, {"x": [1, 2, 3]}]
    with pytest.raises(PlanError, match="between 2 and 3 values"):
        list(windrow.from_items(rows).iter_torch_batches(batch_size=2))


def _take(shard: windrow.Shard, taken: list[int], **arguments: Any) -> None:
    for batch in shard.iter_torch_batches(batch_size=2, **arguments):
        taken += batch["key"].tolist()


def test_error_of_a_batch_loses_no_row() -> None:
    taken: list[int] = []
    rows = [{"key": key, "x": [1, 2] if key < 5 else [3]} for key in range(9)]
    pipe = windrow.from_items(rows).repeat(1).options(executor="threads")
    with pipe.iterator() as shard:
        with pytest.raises(PlanError, match="between 1 and 2 values"):
            _take(shard, taken)
        state = shard.state_dict()
    with pipe.iterator(state_dict=state) as shard:
        _take(shard, taken, ragged="pad")
    assert taken == list(range(9))


def test_spark_array_is_a_feature_matrix(tmp_path: Path) -> None:
    """Spark writes ``array<float>`` for vectors of one length."""
    table = pa.table(
        {"features": pa.array([[1, 2], [3, 4]], pa.list_(pa.float32())), "more": [5.0, 6.0], "y": [0, 1]}
    )
    pq.write_table(table, tmp_path / "x.parquet")
    dataset = windrow.read_parquet(str(tmp_path))
    ((features, label),) = dataset.to_torch(label_column="y", feature_columns=["features"])
    assert (features.shape, label.tolist()) == ((2, 1, 2), [[0], [1]])
    ((features, label),) = dataset.to_torch(
        label_column="y", feature_columns=["features"], unsqueeze_feature_tensors=False
    )
    assert features.tolist() == [[1, 2], [3, 4]]
    with pytest.raises(
        PlanError, match=r"do not join to one tensor: 'features' \(rows, length\), 'more' \(rows\)"
    ):
        dataset.to_torch(label_column="y")


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([[1], None], pa.list_(pa.int64())), "column 'x' .* holds 1 null in \\d rows"),
        (pa.array([[1, None], [2]], pa.list_(pa.int64())), "column 'x' .* holds 1 null in \\d rows"),
    ],
)
def test_nulls_are_an_error(column: pa.Array, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        _convert(column, "pad")


@pytest.mark.parametrize(
    ("ragged", "message"),
    [
        ("padded", "ragged='padded': 'padded' must be 'nested', 'offsets', 'pad' or windrow.Pad"),
        ({"token": "pad"}, r"ragged names columns that do not exist: 'token'; did you mean 'tokens'\?"),
        ({"key": "pad"}, r"ragged names 'key' \(int64\), which is not a list of numbers"),
        (Pad(mask="key"), r"Pad\(mask='key'\) of column 'tokens' names another tensor"),
        (Pad(mask="m"), r"Pad\(mask='m'\) of column 'pair' names another tensor"),
        (Pad(length=3), r"column 'tokens' has a list of 4 values, more than Pad\(length=3\)"),
    ],
)
def test_bad_formats(pipe: windrow.DatasetPipeline, ragged: Any, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        list(pipe.iter_torch_batches(batch_size=50, ragged=ragged))


@pytest.mark.parametrize(
    "arguments",
    [{"length": 0}, {"length": 1.5}, {"value": "0"}, {"side": "both"}, {"truncate": True}, {"mask": 3}],
)
def test_bad_padding(arguments: dict[str, Any]) -> None:
    ((name, value),) = arguments.items()
    with pytest.raises(PlanError, match=re.escape(f"Pad({name}={value!r}) must be")):
        Pad(**arguments)


def test_lists_of_strings_are_an_error_before_reading(tmp_path: Path) -> None:
    pq.write_table(pa.table({"words": [["a"], ["b", "c"]]}), tmp_path / "x.parquet")
    with pytest.raises(PlanError, match=r"tensors cannot hold 'words' \(list<.*string>\)"):
        windrow.read_parquet(str(tmp_path)).iter_torch_batches()


def test_empty_batch_of_lists() -> None:
    formats: list[RaggedFormat | None] = [None, "pad", "offsets"]
    for kind in formats:
        found = _convert(pa.array([], pa.list_(pa.int64())), kind)["x"]
        assert np.asarray(found.values if isinstance(found, Ragged) else found).size == 0
