"""WebDataset: tar files in which the extension of a member determines its encoding."""

from __future__ import annotations

import io
import json
import tarfile
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.io.sinks.columns import arrays, write_bytes
from tests.laws.examples import examples
from windrow.core.errors import PlanError
from windrow.io.sinks.webdataset_sink import WebDatasetSink

STRUCT = pa.struct([("a", pa.int8()), ("b c", pa.list_(pa.string()))])
KINDS = {
    "txt": pa.string(),
    "jpg": pa.binary(),
    "cls": pa.int64(),
    "meta.json": STRUCT,
    "mask.npy": pa.list_(pa.float32(), 2),
}


def samples(data: bytes) -> dict[str, dict[str, bytes]]:
    """Members by key and column, in order; names are split as webdataset splits them."""
    found: dict[str, dict[str, bytes]] = {}
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            folder, _, name = member.name.rpartition("/")
            key, _, column = name.partition(".")
            file = archive.extractfile(member)
            assert file is not None
            found.setdefault(f"{folder}/{key}" if folder else key, {})[column] = file.read()
    return found


def decoded(column: str, data: bytes) -> Any:
    ending = column.rpartition(".")[2]
    if ending == "npy":
        return [float(value).hex() for value in np.load(io.BytesIO(data))]
    if ending == "json":
        return json.loads(data)
    return int(data) if ending == "cls" else data.decode() if ending == "txt" else data


@examples(15)
@given(data=st.data())
def test_members_contain_the_written_values(data: st.DataObject) -> None:
    rows = data.draw(st.integers(0, 4))
    columns = {name: data.draw(arrays(kind, rows=rows)) for name, kind in KINDS.items()}
    table = pa.table({**columns, "n.id": pa.array(range(rows), pa.uint8())})
    found = samples(write_bytes(WebDatasetSink(), table.slice(0, 1), table.slice(1), label="00003"))
    assert list(found) == [f"00003/{row:08d}" for row in range(rows)]
    for members, row in zip(found.values(), table.to_pylist(), strict=True):
        assert members.pop("n.id") == str(row.pop("n.id")).encode()
        if row["mask.npy"] is not None:
            row["mask.npy"] = [value.hex() for value in row["mask.npy"]]
        assert {name: decoded(name, member) for name, member in members.items()} == {
            name: value for name, value in row.items() if value is not None
        }


def test_keys_come_from_a_column() -> None:
    table = pa.table({"__key__": ["a/b.c/d", "x" * 300], "txt": ["1", "2"]})
    assert samples(write_bytes(WebDatasetSink(), table)) == {
        "a/b.c/d": {"txt": b"1"},
        "x" * 300: {"txt": b"2"},
    }
    for bad in ("a.b", "", None, "a/"):
        with pytest.raises(PlanError, match="a key is text, with no dot"):
            write_bytes(WebDatasetSink(), pa.table({"__key__": pa.array([bad], pa.string()), "txt": ["1"]}))


@pytest.mark.parametrize(
    ("name", "kind", "error"),
    [
        ("x", pa.int64(), r"column 'x' is int64: rename it.*<name>.npy"),
        ("cls", pa.string(), "a column of that name must be an integer"),
        ("x.npy", pa.list_(pa.int8()), "make it a fixed-size list"),
        ("x.json", pa.map_(pa.string(), pa.int8()), "make it a list of structs"),
        ("a/b", pa.string(), "no member can be called 'a/b'"),
        ("__url__", pa.string(), "no member can be called"),
        ("__key__", pa.int64(), "cast it to pa.string"),
        ("__key__", pa.string(), None),
    ],
)
def test_values_that_do_not_match_their_extension_raise(
    name: str, kind: pa.DataType, error: str | None
) -> None:
    schema = pa.schema([(name, kind), ("txt", pa.string())])
    if error is None:
        WebDatasetSink().check(schema)
        with pytest.raises(PlanError, match="rows without columns"):
            WebDatasetSink().check(pa.schema([(name, kind)]))
        return
    with pytest.raises(PlanError, match=error):
        WebDatasetSink().check(schema)


def test_files_are_reproducible_and_can_be_compressed() -> None:
    table = pa.table({"txt": ["a"] * 1000})
    plain = write_bytes(WebDatasetSink(), table)
    assert plain == write_bytes(WebDatasetSink(), table)
    packed = write_bytes(WebDatasetSink("gzip"), table)
    assert len(packed) < len(plain) / 10
    with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as archive:
        assert len(archive.getnames()) == 1000


@pytest.mark.parametrize("rows", [1, 256, 300])
def test_rows_that_readers_would_lose_raise(rows: int) -> None:
    keys = [f"k{row}" for row in range(rows)]
    sink, labels = WebDatasetSink(), pa.array(range(rows))
    write_bytes(sink, pa.table({"__key__": keys, "cls": labels}))
    for lost in ({"__key__": [*keys, keys[-1]], "cls": [*range(rows), 0]}, {"cls": [*range(rows), None]}):
        with pytest.raises(PlanError, match=r"follow each other|has nulls only"):
            write_bytes(sink, pa.table(lost))
