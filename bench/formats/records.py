"""Formats of records and of files: CSV, JSON lines, text, TFRecord, WebDataset, images and binary files."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import windrow
from bench.formats.case import BATCH_ROWS, Case, convert_table, make_case, on_all_cores

_FILES = 8
_NUMBERS = 8
_ROW_BYTES = 8 * _NUMBERS + 12
_FEATURES = 64
_SAMPLE_BYTES = 20_000
_SIZE = (224, 224)
_STORED = (256, 320)
_FILE_BYTES = 10_000
# several files per call: the overhead of a call is as large as reading a small file
_AT_ONCE = 64


def _make_tables(size_bytes: int) -> Iterator[pa.Table]:
    """Tables of integers, doubles and strings, one a file."""
    rows = max(1, size_bytes // (_ROW_BYTES * _FILES))
    for part in range(_FILES):
        bits = np.random.default_rng(part)
        columns: dict[str, Any] = {f"i{at}": bits.integers(0, 10**6, rows) for at in range(_NUMBERS // 2)}
        columns |= {f"f{at}": bits.random(rows) for at in range(_NUMBERS // 2)}
        yield pa.table({**columns, "s": [f"name {at:07}" for at in range(rows)]})


def _make_csv(folder: Path, size_bytes: int) -> None:
    import pyarrow.csv as csv

    for part, table in enumerate(_make_tables(size_bytes)):
        csv.write_csv(table, folder / f"{part}.csv")


def _make_json(folder: Path, size_bytes: int) -> None:
    import json

    for part, table in enumerate(_make_tables(size_bytes)):
        lines = (json.dumps(row) + "\n" for batch in table.to_batches(10_000) for row in batch.to_pylist())
        with (folder / f"{part}.jsonl").open("w") as file:
            file.writelines(lines)


def _make_text(folder: Path, size_bytes: int) -> None:
    line = "the quick brown fox jumps over the lazy dog, row {:08}\n"
    content = "".join(map(line.format, range(size_bytes // (56 * _FILES))))
    for part in range(_FILES):
        (folder / f"{part}.txt").write_text(content)


def _make_tfrecord(folder: Path, size_bytes: int) -> None:
    from tfrecord import TFRecordWriter

    bits = np.random.default_rng(0)
    for part in range(_FILES):
        writer = TFRecordWriter(str(folder / f"{part}.tfrecord"))
        for row in range(size_bytes // (4 * _FEATURES * _FILES)):
            values = bits.random(_FEATURES, np.float32).tolist()
            writer.write({"label": (row, "int"), "name": (b"row", "byte"), "values": (values, "float")})
        writer.close()


def _make_tar(folder: Path, size_bytes: int) -> None:
    bits = np.random.default_rng(0)
    for part in range(_FILES):
        with tarfile.open(folder / f"{part}.tar", "w") as archive:
            for row in range(size_bytes // (_SAMPLE_BYTES * _FILES)):
                for extension, content in (("cls", b"7"), ("bin", bits.bytes(_SAMPLE_BYTES))):
                    info = tarfile.TarInfo(f"{row:06}.{extension}")
                    info.size = len(content)
                    archive.addfile(info, io.BytesIO(content))


def _scan_csv(path: Path) -> int:
    import pyarrow.csv as csv

    table = csv.read_csv(path, read_options=csv.ReadOptions(use_threads=False))
    return convert_table(table, copies=True)


def _scan_json(path: Path) -> int:
    import pyarrow.json as json

    table = json.read_json(path, read_options=json.ReadOptions(use_threads=False))
    return convert_table(table, copies=True)


def _scan_text(path: Path) -> int:
    lines = path.read_text().splitlines()
    return sum(len(np.array(lines[at : at + BATCH_ROWS], object)) for at in range(0, len(lines), BATCH_ROWS))


def _scan_tfrecord(path: Path) -> int:
    from tfrecord import tfrecord_loader

    return sum(1 for _ in tfrecord_loader(str(path), None))


def _scan_tar(path: Path) -> int:
    import webdataset

    return sum(1 for _ in webdataset.WebDataset(str(path), shardshuffle=False).decode())


RECORDS = (
    make_case("csv", _make_csv, _scan_csv, windrow.read_csv),
    make_case("json", _make_json, _scan_json, windrow.read_json),
    make_case("text", _make_text, _scan_text, windrow.read_text),
    make_case("tfrecord", _make_tfrecord, _scan_tfrecord, windrow.read_tfrecords),
    make_case("webdataset", _make_tar, _scan_tar, windrow.read_webdataset),
)


def _make_jpeg(folder: Path, size_bytes: int) -> None:
    from PIL import Image

    bits = np.random.default_rng(0)
    for number in range(max(1, size_bytes // (3 * _STORED[0] * _STORED[1]))):
        # smooth like photographs, so that decoding costs the same
        coarse = Image.fromarray(bits.integers(0, 256, (16, 20, 3), np.uint8))
        coarse.resize(_STORED[::-1]).save(folder / f"{number:06}.jpg", quality=90)


def _decode(paths: Sequence[Path]) -> int:
    from PIL import Image

    out = np.empty((len(paths), *_SIZE, 3), np.uint8)
    for place, path in enumerate(paths):
        with Image.open(path) as image:
            out[place] = np.asarray(image.convert("RGB").resize(_SIZE[::-1], Image.Resampling.BILINEAR))
    return len(out)


def _make_binary(folder: Path, size_bytes: int) -> None:
    bits = np.random.default_rng(0)
    for number in range(max(1, size_bytes // _FILE_BYTES)):
        (folder / f"{number:06}.bin").write_bytes(bits.bytes(_FILE_BYTES))


def _load(paths: Sequence[Path]) -> int:
    return sum(len(path.read_bytes()) > 0 for path in paths)


def _cut(folder: Path) -> list[list[Path]]:
    paths = sorted(folder.iterdir())
    return [paths[start : start + _AT_ONCE] for start in range(0, len(paths), _AT_ONCE)]


ROWS = (
    Case(
        "images",
        _make_jpeg,
        lambda folder: on_all_cores(_decode, _cut(folder)),
        lambda folder: windrow.read_images(str(folder), size=_SIZE),
    ),
    Case(
        "binary",
        _make_binary,
        lambda folder: on_all_cores(_load, _cut(folder)),
        lambda folder: windrow.read_binary_files(str(folder)),
    ),
)
