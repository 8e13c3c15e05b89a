"""The same pipeline over the same rows gives the same order in every format, if blocks are equal."""

from __future__ import annotations

import io
import json
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import windrow
from tests.laws.examples import examples
from windrow.dataset.dataset import Dataset
from windrow.io.formats import row_group_format

Row = dict[str, Any]


def _csv(rows: list[Row]) -> bytes:
    sink = io.BytesIO()
    csv.write_csv(pa.Table.from_pylist(rows, pa.schema([("x", pa.int64()), ("s", pa.string())])), sink)
    return sink.getvalue()


def _json(rows: list[Row]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def _tfrecord(rows: list[Row]) -> bytes:
    checksum = pytest.importorskip("google_crc32c").value
    library = pytest.importorskip("tfrecord")
    out = b""
    for row in rows:
        features = {"x": (row["x"], "int"), "s": (row["s"].encode(), "byte")}
        record = library.TFRecordWriter.serialize_tf_example(features)
        for part in (struct.pack("<Q", len(record)), record):
            masked = ((checksum(part) >> 15 | checksum(part) << 17) + 0xA282EAD8) & 0xFFFFFFFF
            out += part + struct.pack("<I", masked)
    return out


def _tar(rows: list[Row]) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as archive:
        for at, row in enumerate(rows):
            for extension, value in (("id", row["x"]), ("txt", row["s"])):
                info, content = tarfile.TarInfo(f"{at}.{extension}"), str(value).encode()
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return sink.getvalue()


FORMATS: dict[str, tuple[Callable[[list[Row]], bytes], Callable[[Path], Dataset], str]] = {
    "csv": (_csv, lambda path: windrow.read_csv(path, dtypes={"x": pa.int64()}), "x"),
    "json": (_json, lambda path: windrow.read_json(path, dtypes={"x": pa.int64()}), "x"),
    "text": (lambda rows: "".join(f"{row['x']}\n" for row in rows).encode(), windrow.read_text, "text"),
    "tfrecord": (_tfrecord, lambda path: windrow.read_tfrecords(path, features={"x": pa.int64()}), "x"),
    "tar": (_tar, windrow.read_webdataset, "id"),
}


@pytest.mark.parametrize("name", FORMATS)
@examples(8)
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=7),
    st.integers(1, 4),
    st.sampled_from([None, 0, 7]),
    st.sampled_from([False, True, "pad"]),
    st.integers(1, 3),
    st.integers(1, 20),
)
def test_order_equals_that_of_parquet(
    tmp_path_factory: pytest.TempPathFactory,
    name: str,
    sizes: list[int],
    blocks_per_window: int,
    seed: int | None,
    equal: Any,
    shards: int,
    batch_rows: int,
) -> None:
    """Each file is a block; long values at the end make estimates of rows and bytes far too low or high."""
    write, read, column = FORMATS[name]
    folder, start = tmp_path_factory.mktemp("order"), 0
    for part, size in enumerate(sizes):
        rows = [{"x": start + at, "s": "y" * (1 if at % 7 else 50)} for at in range(size)]
        start += size
        for kind, content in ((name, write(rows)), ("parquet", b"")):
            path = folder / kind / f"{part:02}.{kind}"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
        pq.write_table(pa.Table.from_pylist(rows), path)
    with pytest.MonkeyPatch.context() as patch:
        # the sample is so small that estimates are far off
        patch.setattr(row_group_format, "HEAD_BYTES", 48)
        sources = [(windrow.read_parquet(folder / "parquet"), "x"), (read(folder / name), column)]
    orders = []
    for ds, key in sources:
        assert ds.num_blocks() == len(sizes)
        assert ds.count() == start
        pipe = ds.window(blocks_per_window=blocks_per_window).repeat(2).options(progress=False)
        pipe = pipe if seed is None else pipe.random_shuffle_each_window(seed=seed)
        assigned = []
        for shard in pipe.split(shards, equal=equal):
            with shard:
                for epoch in shard.iter_epochs():
                    batches = epoch.iter_batches(batch_size=batch_rows)
                    assigned.append([[int(value) for value in batch[key]] for batch in batches])
        orders.append(assigned)
    assert orders[0] == orders[1]
