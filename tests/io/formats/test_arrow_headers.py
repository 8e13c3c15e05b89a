"""A batch whose header does not fit the schema of its file is corrupt."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import windrow


@pytest.mark.parametrize(
    "stored",
    [
        pa.table({"a": [1]}),
        pa.table({"a": [1], "b": ["x"]}),
        pa.table({"a": [1], "b": [2], "c": [3]}),
        pa.table({"a": [1], "b": [[2]]}),
        pa.table({"a": [1], "b": [2], "c": pa.nulls(1)}),
    ],
    ids=[
        "too few columns",
        "too many buffers",
        "too many columns",
        "columns in columns",
        "a column without buffers",
    ],
)
def test_a_batch_of_another_schema_is_corrupt(tmp_path: Path, stored: pa.Table) -> None:
    def messages(table: pa.Table) -> list[bytes]:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        reader = pa.BufferReader(sink.getvalue())
        return [pa.ipc.read_message(reader).serialize().to_pybytes() for _ in range(2)]

    path = tmp_path / "x.arrow"
    path.write_bytes(messages(pa.table({"a": [1], "b": [2]}))[0] + messages(stored)[1])
    with pytest.raises(windrow.SourceError, match=f"{path}.*batch that does not fit its schema"):
        windrow.read_arrow(str(path))
