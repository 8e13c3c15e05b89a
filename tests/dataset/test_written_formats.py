"""Round trips: windrow reads back what it wrote, for every type that a format supports."""

from __future__ import annotations

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
from tests.io.sinks.columns import TYPES, arrays, csv_type, same
from tests.laws.examples import examples
from tests.library_versions import parquet_stores_nulls
from windrow.core.errors import PlanError
from windrow.dataset.dataset import Dataset
from windrow.io.sinks.arrow_sinks import CsvSink, IpcSink, ParquetSink
from windrow.io.sinks.json_sink import JsonSink
from windrow.io.sinks.numpy_sink import NumpySink
from windrow.io.sinks.sink import Sink
from windrow.io.sinks.tfrecord_sink import TfRecordSink


def carried(sink: Sink) -> list[pa.DataType]:
    """Return the types that a sink accepts, except string views."""

    def takes(kind: pa.DataType) -> bool:
        try:
            sink.check(pa.schema([("c", kind)]))
        except PlanError:
            return False
        return True

    # Arrow's take does not support string views
    return [kind for kind in TYPES if takes(kind) and not pa.types.is_string_view(kind)]


def read_csv(path: Path, schema: pa.Schema) -> Dataset:
    dtypes = {field.name: csv_type(field.type) for field in schema}
    return windrow.read_csv(
        path, dtypes=dtypes, null_values=[""], strings_can_be_null=True, newlines_in_values=True
    )


def read_json(path: Path, schema: pa.Schema) -> Dataset:
    return windrow.read_json(path, dtypes={field.name: _json_type(field.type) for field in schema})


def _json_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return kind.value_type
    if pa.types.is_date32(kind):
        return pa.timestamp("s")
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return pa.list_(_json_type(kind.value_type)) if any(test(kind) for test in lists) else kind


READERS: dict[str, tuple[Sink, Callable[[Path, pa.Schema], Dataset]]] = {
    "parquet": (ParquetSink(), lambda path, _: windrow.read_parquet(path)),
    "arrow": (IpcSink(), lambda path, _: windrow.read_arrow(path)),
    "csv": (CsvSink(), read_csv),
    "json": (JsonSink(), read_json),
    "numpy": (NumpySink(), lambda path, _: windrow.read_numpy(path)),
}


@pytest.mark.parametrize("method", READERS)
@examples(4)
@given(data=st.data())
def test_every_type_round_trips(
    method: str, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    sink, read = READERS[method]
    rows = data.draw(st.integers(1, 4))
    columns = {}
    for kind in carried(sink):
        nulls = method != "numpy" and (method != "parquet" or parquet_stores_nulls(kind))
        columns[str(kind)] = data.draw(arrays(kind, rows=rows, nulls=nulls))
    if method in ("csv", "numpy"):
        # the CSV reader reads empty text as null, and the NumPy reader cuts text at zero bytes
        columns = {name: _without_edges(column) for name, column in columns.items()}
    table = pa.table({**columns, "row": pa.array(range(rows), pa.int64())})
    folder = tmp_path_factory.mktemp("written") / "out"
    dataset = windrow.from_arrow(table).options(executor="threads")
    getattr(dataset, f"write_{method}")(folder)
    found = read(folder, table.schema).take_batch(100, batch_format="pyarrow").cast(table.schema)
    assert [name for name in table.schema.names if not same(found[name], table[name])] == []


def _without_edges(column: pa.Array) -> pa.Array:
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not pa.types.is_string(kind) and not pa.types.is_large_string(kind):
        return column
    texts = [None if text is None else text.replace("\0", "") + "." for text in column.to_pylist()]
    return pa.array(texts, column.type)


def test_tfrecord_features_round_trip(tmp_path: Path) -> None:
    pytest.importorskip("google_crc32c")
    table = pa.table(
        {
            "i": pa.array([1, -(2**63), None], pa.int64()),
            "f": pa.array([1.5, None, -0.0], pa.float32()),
            "b": [b"", b"\x00\xff", None],
            "l": pa.array([[1, 2], [], [3]], pa.list_(pa.int64())),
        }
    )
    TfRecordSink().check(table.schema)
    windrow.from_arrow(table).write_tfrecords(tmp_path / "out", compression="gzip")
    assert windrow.read_tfrecords(tmp_path / "out").take() == sorted_rows(table)


def sorted_rows(table: pa.Table) -> list[dict[str, Any]]:
    """Return the rows with columns sorted by name, as TFRecord features have no order."""
    rows: list[dict[str, Any]] = table.select(sorted(table.schema.names)).to_pylist()
    return rows


def test_webdataset_samples_round_trip(tmp_path: Path) -> None:
    table = pa.table(
        {
            "txt": ["a", "é", ""],
            "cls": [1, -2, 3],
            "m.json": [{"a": [1], "b": None}, {"a": [], "b": 1.5}, {"a": [3], "b": 0.5}],
            "v.npy": pa.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], pa.list_(pa.float32(), 2)),
            "bin": [b"\x00", b"", b"\xff"],
        }
    )
    pq.write_table(table, tmp_path / "in.parquet")
    windrow.read_parquet(tmp_path / "in.parquet").write_webdataset(tmp_path / "out")
    found = windrow.read_webdataset(tmp_path / "out").take()
    assert [row.pop("__key__").rpartition("/")[2] for row in found] == ["00000000", "00000001", "00000002"]
    assert found == table.to_pylist()


def test_tensors_round_trip_through_parquet(tmp_path: Path) -> None:
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(24.0).reshape(4, 2, 3))
    written = windrow.from_arrow(pa.table({"t": tensors})).write_parquet(tmp_path / "out")
    assert written.rows == 4
    found = windrow.read_parquet(tmp_path / "out").take_batch(4)["t"]
    assert found.shape == (4, 2, 3)
    assert found[3].tolist() == [[18.0, 19.0, 20.0], [21.0, 22.0, 23.0]]
