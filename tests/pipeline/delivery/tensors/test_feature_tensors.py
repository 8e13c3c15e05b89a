"""(features, label) as Ray's to_torch returns them: structures, shapes, types and errors."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.pipeline.columns import batch_of
from windrow.core.errors import PlanError
from windrow.pipeline.delivery.tensors.feature_tensors import FeatureSpec, to_features

BATCH = batch_of(
    a=pa.array([1, 2, 3], pa.int32()),
    b=pa.array([0.5, 1.5, 2.5], pa.float32()),
    y=pa.array([7, 8, 9], pa.int64()),
)


def _convert(batch: pa.RecordBatch = BATCH, **options: Any) -> tuple[Any, Any]:
    spec = FeatureSpec(**options)
    spec.check(batch.schema, dict.fromkeys(batch.schema.names, 0))
    return to_features(batch, spec, spec.placement.mover())


def test_columns_other_than_the_label_form_one_matrix() -> None:
    features, label = _convert(label_column="y")
    assert features.tolist() == [[1, 0.5], [2, 1.5], [3, 2.5]]
    assert features.dtype == torch.float32
    assert features.is_contiguous()
    assert label.tolist() == [[7], [8], [9]]
    assert label.dtype == torch.int64


@pytest.mark.parametrize("none", [None, [], {}])
def test_without_a_label(none: Any) -> None:
    features, label = _convert(feature_columns=none)
    assert features.shape == (3, 3)
    assert label is None


def test_list_of_columns_forms_one_matrix() -> None:
    features, _ = _convert(feature_columns=["y", "a"], feature_column_dtypes=torch.float64)
    assert features.tolist() == [[7, 1], [8, 2], [9, 3]]
    assert features.dtype == torch.float64


def test_column_named_twice_appears_twice() -> None:
    features, _ = _convert(feature_columns=["a", "a"])
    assert features.tolist() == [[1, 1], [2, 2], [3, 3]]


@pytest.mark.parametrize("dtypes", [torch.float16, [torch.float16, torch.float16]])
def test_a_list_of_lists(dtypes: Any) -> None:
    features, _ = _convert(feature_columns=[["a"], ["b", "y"]], feature_column_dtypes=dtypes)
    assert isinstance(features, list)
    assert [tuple(tensor.shape) for tensor in features] == [(3, 1), (3, 2)]
    assert {tensor.dtype for tensor in features} == {torch.float16}


def test_a_dict_of_lists() -> None:
    features, _ = _convert(
        feature_columns={"left": ["a", "y"], "right": ["b"]},
        feature_column_dtypes={"right": torch.float64, "left": None},
    )
    assert list(features) == ["left", "right"]
    assert features["left"].dtype == torch.int64
    assert features["left"].tolist() == [[1, 7], [2, 8], [3, 9]]
    assert features["right"].dtype == torch.float64


def test_without_unsqueezing() -> None:
    features, label = _convert(
        label_column="y",
        feature_columns=["a"],
        label_column_dtype=torch.float32,
        unsqueeze_label_tensor=False,
        unsqueeze_feature_tensors=False,
    )
    assert features.tolist() == [1, 2, 3]
    assert label.tolist() == [7.0, 8.0, 9.0]
    assert label.dtype == torch.float32


VECTORS = batch_of(
    u=pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float64(), 2)),
    v=pa.array([[5.0, 6.0, 7.0], [8.0, 9.0, 10.0]], pa.list_(pa.float64(), 3)),
    w=pa.array([[1.0, 1.0], [2.0, 2.0]], pa.list_(pa.float64(), 2)),
    x=[1, 2],
)


def test_vectors_are_concatenated_or_stacked() -> None:
    joined, _ = _convert(VECTORS, feature_columns=["u", "v"], unsqueeze_feature_tensors=False)
    assert joined.tolist() == [[1, 2, 5, 6, 7], [3, 4, 8, 9, 10]]
    stacked, _ = _convert(VECTORS, feature_columns=["u", "w"])
    assert stacked.shape == (2, 2, 2)
    assert stacked[1].tolist() == [[3, 4], [2, 2]]


@given(st.integers(1, 6), st.integers(0, 9), st.sampled_from([torch.float32, torch.int64, None]))
def test_matrix_equals_stacked_columns(columns: int, rows: int, dtype: torch.dtype | None) -> None:
    data = {f"c{i}": pa.array([j * columns + i for j in range(rows)], pa.int16()) for i in range(columns)}
    features, _ = _convert(batch_of(**data), feature_column_dtypes=dtype)
    expected = torch.arange(rows * columns).reshape(rows, columns).to(dtype or torch.int16)
    assert torch.equal(features, expected)


def test_tensors_share_no_memory() -> None:
    (left, right), label = _convert(label_column="y", feature_columns=[["a"], ["a"]])
    for tensor in (left, right, label):
        before = [other.clone() for other in (left, right, label) if other is not tensor]
        tensor += 100
        after = [other for other in (left, right, label) if other is not tensor]
        assert all(map(torch.equal, before, after))
    assert BATCH.column("a").to_pylist() == [1, 2, 3]


def test_spec_copies_its_columns_and_pickles_by_value() -> None:
    columns = {"k": ["a"]}
    spec = FeatureSpec(label_column="y", feature_columns=columns)
    columns["k"].append("b")
    assert spec.feature_columns == {"k": ("a",)}
    assert pickle.loads(pickle.dumps(spec)) == spec


F32 = torch.float32


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"label_column": ["y"]}, r"label_column=\['y'\] must be the name of one column"),
        ({"label_column": ("y", "a")}, r"For several labels, join their columns into one with map_batches"),
        ({"label_column": "y", "feature_columns": ["a", "y"]}, "feature_columns holds the label 'y'"),
        ({"label_column": "y", "feature_columns": {"k": ["y"]}}, "feature_columns holds the label 'y'"),
        ({"feature_columns": "a"}, "feature_columns holds 'a': give a list of names"),
        ({"feature_columns": ["a", ["b"]]}, "feature_columns holds 'a': give a list of names"),
        ({"feature_columns": [1]}, r"feature_columns holds \(?\[1\]"),
        ({"feature_columns": [["a"], []]}, "feature_columns holds an empty list"),
        ({"feature_columns": {"k": []}}, "feature_columns holds an empty list"),
        ({"feature_columns": ["a"], "feature_column_dtypes": [F32]}, "must be a list of equally many lists"),
        (
            {"feature_columns": [["a"]], "feature_column_dtypes": [F32, F32]},
            "must be a list of equally many lists",
        ),
        (
            {"feature_columns": {"k": ["a"]}, "feature_column_dtypes": [F32]},
            "must be a list of equally many lists",
        ),
        (
            {"feature_columns": {"k": ["a"]}, "feature_column_dtypes": {"j": F32}},
            "must be a dict with the same keys",
        ),
        (
            {"feature_columns": ["a"], "feature_column_dtypes": {"a": F32}},
            "must be a dict with the same keys",
        ),
        (
            {"feature_column_dtypes": "float32"},
            "feature_column_dtypes holds 'float32', which is not a torch.dtype",
        ),
        ({"label_column_dtype": float}, "label_column_dtype holds <class 'float'>"),
        ({"device": "gpu"}, "device='gpu' is not a torch device"),
    ],
)
def test_bad_options(options: dict[str, Any], match: str) -> None:
    with pytest.raises(PlanError, match=match):
        FeatureSpec(**options)


@pytest.mark.parametrize(
    ("columns", "options", "match"),
    [
        (
            ["a", "y"],
            {"label_column": "z"},
            "label_column names columns that do not exist: 'z'; the columns are 'a', 'y'",
        ),
        (["fare"], {"feature_columns": ["fair", "x"]}, "not exist: 'fair', 'x'; did you mean 'fare'"),
        (["y"], {"label_column": "y"}, "there are no feature columns: the label is the only column"),
    ],
)
def test_missing_columns_are_an_error(columns: list[str], options: dict[str, Any], match: str) -> None:
    with pytest.raises(PlanError, match=match):
        FeatureSpec(**options).check(pa.schema({name: pa.int64() for name in columns}), {})


def test_unsupported_types_are_an_error_only_in_used_columns() -> None:
    schema = pa.schema({"name": pa.string(), "a": pa.int64(), "y": pa.string()})
    FeatureSpec(feature_columns=["a"]).check(schema, {"name": 5})
    with pytest.raises(PlanError, match=r"tensors cannot hold 'name' \(string\), 'y' \(string\)"):
        FeatureSpec(label_column="y").check(schema, {})
    with pytest.raises(PlanError, match=r"'a' \(2 nulls\)"):
        FeatureSpec(feature_columns=["a"]).check(schema, {"a": 2})


@pytest.mark.parametrize(
    ("names", "unsqueeze", "match"),
    [
        (["u", "v"], True, r"'u' \(rows, 2\), 'v' \(rows, 3\); give each shape its own list"),
        (["u", "x"], True, r"'x' \(rows\); give each shape its own list"),
        (["x", "u"], False, "give unsqueeze_feature_tensors=True"),
    ],
)
def test_incompatible_shapes_are_an_error(names: list[str], unsqueeze: bool, match: str) -> None:
    with pytest.raises(PlanError, match=match):
        FeatureSpec(feature_columns=names, unsqueeze_feature_tensors=unsqueeze).check(VECTORS.schema, {})


def test_types_without_common_dtype_are_an_error() -> None:
    schema = pa.schema({"a": pa.uint32(), "b": pa.int64()})
    with pytest.raises(
        PlanError, match=r"no common dtype .*'a' \(uint32\), 'b' \(int64\): give feature_column_dtypes"
    ):
        FeatureSpec().check(schema, {})
    FeatureSpec(feature_column_dtypes=torch.int64).check(schema, {})


def test_nulls_in_a_batch_are_an_error() -> None:
    with pytest.raises(PlanError, match=r"column 'a' .* holds 1 null in"):
        _convert(batch_of(a=[1, None]))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_cuda() -> None:
    features, label = _convert(label_column="y", device="cuda")
    assert features.tolist() == [[1, 0.5], [2, 1.5], [3, 2.5]]
    assert features.device.type == label.device.type == "cuda"
