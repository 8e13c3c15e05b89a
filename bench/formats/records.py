"""Formats without row counts in their metadata: CSV, JSON lines, text, TFRecord, WebDataset."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import windrow
from bench.formats.case import BATCH_ROWS, Case, on_all_cores

_FILES = 8
_NUMBERS = 8
_ROW_BYTES = 8 * _NUMBERS + 12
_FEATURES = 64
_SAMPLE_BYTES = 20_000


def _table(rows: int, seed: int) -> pa.Table:
    """Half integers, half floats, and a short text."""
    bits = np.random.Generator(np.random.PCG64(seed))
    columns: dict[str, Any] = {f"i{at}": bits.integers(0, 10**6, rows) for at in range(_NUMBERS // 2)}
    columns |= {f"f{at}": bits.random(rows) for at in range(_NUMBERS // 2)}
    return pa.table({**columns, "s": [f"name {at:07}" for at in range(rows)]})


def _parts(size_bytes: int) -> Iterable[tuple[int, pa.Table]]:
    rows = max(1, size_bytes // (_ROW_BYTES * _FILES))
    return ((part, _table(rows, part)) for part in range(_FILES))


def _make_csv(folder: Path, size_bytes: int) -> None:
    import pyarrow.csv as csv

    for part, table in _parts(size_bytes):
        csv.write_csv(table, folder / f"{part}.csv")


def _make_json(folder: Path, size_bytes: int) -> None:
    import json

    for part, table in _parts(size_bytes):
        lines = (json.dumps(row) + "\n" for batch in table.to_batches(10_000) for row in batch.to_pylist())
        with (folder / f"{part}.jsonl").open("w") as file:
            file.writelines(lines)


def _make_text(folder: Path, size_bytes: int) -> None:
    for part in range(_FILES):
        line = "the quick brown fox jumps over the lazy dog, row {:08}\n"
        rows = range(size_bytes // (56 * _FILES))
        (folder / f"{part}.txt").write_text("".join(map(line.format, rows)))


def _make_tfrecord(folder: Path, size_bytes: int) -> None:
    from tfrecord import TFRecordWriter

    bits = np.random.Generator(np.random.PCG64(0))
    for part in range(_FILES):
        writer = TFRecordWriter(str(folder / f"{part}.tfrecord"))
        for row in range(size_bytes // (4 * _FEATURES * _FILES)):
            values = bits.random(_FEATURES, np.float32).tolist()
            writer.write({"label": (row, "int"), "name": (b"row", "byte"), "values": (values, "float")})
        writer.close()


def _make_tar(folder: Path, size_bytes: int) -> None:
    bits = np.random.Generator(np.random.PCG64(0))
    for part in range(_FILES):
        with tarfile.open(folder / f"{part}.tar", "w") as archive:
            for row in range(size_bytes // (_SAMPLE_BYTES * _FILES)):
                for extension, content in (("cls", b"7"), ("bin", bits.bytes(_SAMPLE_BYTES))):
                    info = tarfile.TarInfo(f"{row:06}.{extension}")
                    info.size = len(content)
                    archive.addfile(info, io.BytesIO(content))


def _batches(table: pa.Table) -> int:
    """Copy a table to NumPy arrays batch by batch; returns its rows."""
    rows = 0
    for batch in table.to_batches(BATCH_ROWS):
        owned = {name: batch[name].to_numpy(zero_copy_only=False).copy() for name in batch.schema.names}
        rows += len(next(iter(owned.values())))
    return rows


def _scan_csv(path: Path) -> int:
    import pyarrow.csv as csv

    return _batches(csv.read_csv(path, read_options=csv.ReadOptions(use_threads=False)))


def _scan_json(path: Path) -> int:
    import pyarrow.json as json

    return _batches(json.read_json(path, read_options=json.ReadOptions(use_threads=False)))


def _scan_text(path: Path) -> int:
    lines = path.read_text().splitlines()
    return sum(len(np.array(lines[at : at + BATCH_ROWS], object)) for at in range(0, len(lines), BATCH_ROWS))


def _scan_tfrecord(path: Path) -> int:
    from tfrecord import tfrecord_loader

    return sum(1 for _ in tfrecord_loader(str(path), None))


def _scan_tar(path: Path) -> int:
    import webdataset

    return sum(1 for _ in webdataset.WebDataset(str(path), shardshuffle=False).decode())


def _case(
    name: str,
    make: Callable[[Path, int], None],
    scan: Callable[[Path], int],
    read: Callable[[str], windrow.Dataset],
) -> Case:
    return Case(
        name,
        make,
        lambda folder: on_all_cores(scan, sorted(folder.iterdir())),
        lambda folder: read(str(folder)),
    )


RECORDS = (
    _case("csv", _make_csv, _scan_csv, windrow.read_csv),
    _case("json", _make_json, _scan_json, windrow.read_json),
    _case("text", _make_text, _scan_text, windrow.read_text),
    _case("tfrecord", _make_tfrecord, _scan_tfrecord, windrow.read_tfrecords),
    _case("webdataset", _make_tar, _scan_tar, windrow.read_webdataset),
)
