"""Storage that fails while blocks of Avro, ORC and MDS are read: an error of storage, and none of corrupt data."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest

import windrow
from tests.io.formats.mds_writer import encode, write_mds
from tests.io.formats.stored import CountingStore, source_of
from windrow.core.source import CorruptBlockError
from windrow.dataset.dataset import Dataset


class FailingStore(CountingStore):
    """A store that refuses to read once it ``fails``."""

    fails = False

    def cat_file(self, path: str, *arguments: Any, **options: Any) -> bytes:
        if self.fails:
            raise OSError("the disk of the server is broken")
        return super().cat_file(path, *arguments, **options)


def _avro(store: FailingStore, _: Any) -> Dataset:
    library = pytest.importorskip("fastavro")
    schema = {"type": "record", "name": "Row", "fields": [{"name": "x", "type": "long"}]}
    content = io.BytesIO()
    library.writer(content, schema, [{"x": at} for at in range(9)])
    store.pipe_file("/d/x", content.getvalue())
    return windrow.read_avro("/d", filesystem=store, retry_seconds=0)


def _orc(store: FailingStore, _: Any, columns: Sequence[str] = ("x", "y")) -> Dataset:
    orc, sink = pytest.importorskip("pyarrow.orc"), pa.BufferOutputStream()
    orc.write_table(pa.table({"x": range(9), "y": range(9)}), sink)
    store.pipe_file("/d/x", sink.getvalue().to_pybytes())
    return windrow.read_orc("/d", filesystem=store, columns=columns, retry_seconds=0)


def _orc_column(store: FailingStore, tmp_path: Any) -> Dataset:
    return _orc(store, tmp_path, ["x"])


def _mds(store: FailingStore, tmp_path: Any) -> Dataset:
    folder = write_mds(tmp_path, {"x": "int"}, [[{"x": encode("int", at)} for at in range(9)]], "zstd")
    for path in folder.iterdir():
        store.pipe_file(f"/d/{path.name}", path.read_bytes())
    return windrow.read_mds("/d", filesystem=store, retry_seconds=0)


@pytest.mark.parametrize("make", [_avro, _orc, _orc_column, _mds])
@pytest.mark.parametrize("after", [0, 1])
def test_errors_of_storage_are_no_corruption(
    make: Callable[[FailingStore, Any], Dataset], after: int, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the first request for a block, and, with headers in memory, at that for its rows."""
    store = FailingStore()
    source = source_of(make(store, tmp_path))
    (address,) = source.addresses([0])
    if after:
        assert source.reader.read(address).num_rows == 9
    store.fails = True
    with pytest.raises(windrow.SourceError, match="the disk of the server is broken") as raised:
        source.reader.read(address)
    assert not isinstance(raised.value, CorruptBlockError)
    assert "corrupt" not in str(raised.value)
    assert "/d" in str(raised.value)
