"""Names of other libraries: each is answered with a call that works as written, or a reason why there is none."""

from __future__ import annotations

import ast
import copy
import inspect
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

import windrow
from windrow.core import names_elsewhere
from windrow.core.missing_names import NamesMissing

TABLES = {
    "Dataset": names_elsewhere.DATASET,
    "DatasetPipeline": names_elsewhere.PIPELINE,
    "Shard": names_elsewhere.SHARD,
    "Epoch": names_elsewhere.EPOCH,
    "EpochBatches": names_elsewhere.BATCHES,
    "Passes": names_elsewhere.BATCHES,
    "GroupedDataset": names_elsewhere.GROUPED,
    "windrow": names_elsewhere.FUNCTIONS,
}
CALL = re.compile(r"`([^`]+)`")
CALLS = sorted({call for table in TABLES.values() for text in table.values() for call in CALL.findall(text)})
# what runs only with a library that is large, or with Ray
UNRUN = ("to_ray", "to_spark", "to_tf", "group_by_length")


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Return what the texts call ``ds``, ``pipe`` and so on, in a folder with the files that they read."""
    monkeypatch.chdir(tmp_path)
    table = pa.table({"x": [3, 1, 2, 1, 5, 4], "y": [0, 1, 0, 1, 0, 1]})
    pq.write_table(table, "rows.parquet", row_group_size=2)
    pa.csv.write_csv(table, "rows.csv")
    pa.feather.write_feather(table, "rows.arrow", compression="uncompressed")
    Path("rows.json").write_text('{"x": 1}\n')
    ds = windrow.read_parquet("rows.parquet").options(executor="threads", progress=False)
    pipe = ds.repeat(2).random_shuffle_each_window(seed=7)
    with pipe.iterator() as shard:
        yield {
            "ds": ds,
            "other": ds.rename_columns({"x": "x", "y": "y"}),
            "pipe": pipe,
            "shard": shard,
            "windrow": windrow,
            "table": table,
            "pc": pc,
            "pickle": pickle,
            "f": lambda batch: batch,
        }


def _holders(names: dict[str, Any]) -> dict[str, Any]:
    shard = names["shard"]
    epoch = next(shard.iter_epochs())
    return {
        "Dataset": names["ds"],
        "DatasetPipeline": names["pipe"],
        "Shard": shard,
        "Epoch": epoch,
        "EpochBatches": epoch.iter_batches(2),
        "Passes": names["ds"].iter_batches(2),
        "GroupedDataset": names["ds"].groupby("y"),
        "windrow": windrow,
    }


@pytest.mark.parametrize("call", [call for call in CALLS if not any(name in call for name in UNRUN)])
def test_calls_work_as_written(call: str, names: dict[str, Any]) -> None:
    if "polars" in call:
        names["polars"] = pytest.importorskip("polars")
    if "torch" in call or "loader" in call:
        pytest.importorskip("torch")
    if "pandas" in call:
        pytest.importorskip("pandas")
    result = eval(call, names)
    if isinstance(result, windrow.Dataset):
        result.take(1)
    elif isinstance(result, windrow.BatchIterator):
        assert len(list(result)) > 0


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fillna", {"x": [1.0, 2.0, None], "y": [0.0, 5.0, 6.0]}),
        ("dropna", {"x": [1.0, 2.0], "y": [None, 5.0]}),
    ],
)
def test_calls_for_nulls_keep_the_other_columns(name: str, expected: dict[str, list[float | None]]) -> None:
    rows = windrow.from_arrow(pa.table({"x": [1.0, 2.0, None], "y": [None, 5.0, 6.0]}))
    assert eval(_find_call(name), {"ds": rows, "pc": pc}).to_arrow().to_pydict() == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fill_nan", {"x": [1.0, np.nan], "y": [0.0, 5.0]}),
        ("drop_nans", {"x": [1.0], "y": [np.nan]}),
    ],
)
def test_calls_for_nan_do_not_take_it_for_null(name: str, expected: dict[str, list[float]]) -> None:
    rows = windrow.from_numpy({"x": np.array([1.0, np.nan]), "y": np.array([np.nan, 5.0])})
    found = eval(_find_call(name), {"ds": rows, "pc": pc}).to_numpy()
    for column, values in expected.items():
        np.testing.assert_array_equal(found[column], values)


def _find_call(name: str) -> str:
    (call,) = CALL.findall(
        next(text for keys, text in names_elsewhere.DATASET.items() if name in keys.split())
    )
    return str(call)


@pytest.mark.parametrize("call", [call for call in CALLS if any(name in call for name in UNRUN)])
def test_other_calls_have_the_parameters(call: str) -> None:
    (node,) = ast.parse(call).body
    assert isinstance(node, ast.Expr)
    assert isinstance(node.value, ast.Call)
    assert isinstance(node.value.func, ast.Attribute)
    assert isinstance(node.value.func.value, ast.Name)
    assert node.value.func.value.id == "ds"
    signature = inspect.signature(getattr(windrow.Dataset, node.value.func.attr))
    signature.bind(None, *node.value.args, **{str(word.arg): word.value for word in node.value.keywords})


@pytest.mark.parametrize("kind", TABLES)
def test_each_name_is_answered_and_no_attribute(kind: str, names: dict[str, Any]) -> None:
    holder = _holders(names)[kind]
    listed = [name for keys in TABLES[kind] for name in keys.split()]
    unknown = [name for name in listed if not hasattr(holder, name)]
    if kind not in ("Shard", "Epoch"):
        assert unknown == listed, "what exists needs no advice"
    assert len(unknown) > 3
    for name in unknown:
        with pytest.raises(AttributeError, match=rf"no attribute '{name}': .{{15}}") as raised:
            getattr(holder, name)
        assert "`" not in str(raised.value)


@pytest.mark.parametrize("kind", TABLES)
def test_each_name_has_one_answer(kind: str) -> None:
    listed = [name for keys in TABLES[kind] for name in keys.split()]
    repeated = {name for name in listed if listed.count(name) > 1}
    assert repeated == set()


@pytest.mark.parametrize(
    "library", ["ray.data.Dataset", "ray.data.DataIterator", "datasets.Dataset", "datasets.IterableDataset"]
)
def test_every_name_of_a_library_is_answered(library: str) -> None:
    package, _, name = library.rpartition(".")
    there = {name for name in dir(getattr(pytest.importorskip(package), name)) if not name.startswith("_")}
    ds: Any = windrow.range(3)
    silent = []
    for each in there - set(dir(ds)):
        # those of classes, and Ray's own
        if each.startswith("from_") or each.endswith("_internal"):
            continue
        with pytest.raises(AttributeError) as raised:
            getattr(ds, each)
        if ": " not in str(raised.value):
            silent.append(each)
    assert sorted(silent) == []


def test_methods_of_datasets_and_pipelines_are_named_where_they_are(names: dict[str, Any]) -> None:
    held = _holders(names)
    for kind in ("DatasetPipeline", "Shard", "Epoch"):
        for name in {*dir(windrow.Dataset), *dir(windrow.DatasetPipeline)}:
            if not name.startswith("_") and not hasattr(held[kind], name):
                with pytest.raises(AttributeError, match=f"'{kind}' object has no attribute '{name}': "):
                    getattr(held[kind], name)
    with pytest.raises(AttributeError, match=r"'groupby': call it on the dataset, before window\(\)"):
        names["pipe"].groupby  # noqa: B018
    with pytest.raises(
        AttributeError, match=r"'value_counts': on the dataset, before window\(\) or repeat\(\): call"
    ):
        names["pipe"].value_counts  # noqa: B018


def test_methods_of_pipelines_are_named_on_datasets() -> None:
    ds: Any = windrow.range(3)
    for name in {*dir(windrow.DatasetPipeline)} - {*dir(windrow.Dataset)}:
        if not name.startswith("_"):
            with pytest.raises(AttributeError, match=f"'Dataset' object has no attribute '{name}': "):
                getattr(ds, name)
    with pytest.raises(
        AttributeError, match=r"'pack': call it on the pipeline, behind window\(\) or repeat\(\)$"
    ):
        ds.pack(256, "tokens")
    with pytest.raises(
        AttributeError, match=r"'iter_epochs': a Dataset has no epochs: call ds\.repeat\(10\)"
    ):
        ds.iter_epochs()


def test_unknown_formats_name_those_that_exist() -> None:
    ds: Any = windrow.range(3)
    with pytest.raises(
        AttributeError, match=r"'write_excel': there are .*write_csv\(\), .* and write_webdataset\(\)$"
    ):
        ds.write_excel("out")
    with pytest.raises(AttributeError, match=r"'read_parket': there are .*read_parquet\(\)"):
        windrow.read_parket  # type: ignore[attr-defined] # noqa: B018


def test_items_are_answered() -> None:
    ds: Any = windrow.range(3)
    with pytest.raises(TypeError, match=r"not subscriptable: select_columns\(\['id'\]\) keeps columns\. "):
        ds["id"]
    with pytest.raises(TypeError, match=r"not subscriptable: select_columns\(\['id', 'x'\]\)"):
        ds[["id", "x"]]
    for key in (0, slice(5)):
        with pytest.raises(TypeError, match=r"not subscriptable: .*take\(n\) .*limit\(n\)"):
            ds[key]
    with pytest.raises(TypeError, match=r"not subscriptable: iterate over what iter_epochs\(\)"):
        ds.repeat(1).iterator()["id"]


PROBES = (
    "_repr_png_",
    "_repr_mimebundle_",
    "_ipython_canary_method_should_not_exist_",
    "__array__",
    "__dataframe__",
)


def test_probes_get_the_plain_error(names: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names_elsewhere, "find_advice", lambda *_: pytest.fail("a probe was looked up"))
    for holder in _holders(names).values():
        for probe in PROBES:
            assert not hasattr(holder, probe)
    with pytest.raises(AttributeError, match=r"^'Dataset' object has no attribute '_repr_png_'$"):
        names["ds"]._repr_png_  # noqa: B018


def test_objects_stay_what_they_are(names: dict[str, Any]) -> None:
    for kind in ("Dataset", "DatasetPipeline"):
        holder = _holders(names)[kind]
        assert not hasattr(holder, "shuffle")
        assert "shuffle" not in dir(holder)
        assert copy.copy(holder)._plan is holder._plan
        assert copy.deepcopy(holder).count() == pickle.loads(pickle.dumps(holder)).count() == 6
    assert not hasattr(object.__new__(windrow.Dataset), "anything"), "without its fields"


def test_errors_within_properties_stay_their_own() -> None:
    class Broken(NamesMissing):
        @property
        def value(self) -> int:
            raise AttributeError("from within")

    with pytest.raises(AttributeError, match=r"^from within$"):
        Broken().value  # noqa: B018


def test_errors_of_calls_name_no_base_class_of_a_public_one() -> None:
    ds = windrow.range(4)
    pipe = ds.repeat(1)
    shard = pipe.iterator()
    for kind in (ds, pipe, shard, next(shard.iter_epochs()), ds.groupby("id")):
        for name in dir(type(kind)):
            method = getattr(type(kind), name)
            if not name.startswith("_") and callable(method):
                assert method.__qualname__ in (name, f"{type(kind).__name__}.{name}")
    unknown: Any = {"rows": 1}
    for each in (ds, pipe, shard):
        with pytest.raises(TypeError, match=r"^iter_batches\(\) got an unexpected"):
            each.iter_batches(3, **unknown)
    batches: Any = ds.iter_batches(3)
    with pytest.raises(AttributeError, match=r"^'BatchIterator' object has no attribute 'columns'"):
        batches.columns  # noqa: B018
