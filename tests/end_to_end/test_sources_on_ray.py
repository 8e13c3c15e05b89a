"""Every format, source and adapter on Ray: workers read the same rows in the same order as threads."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import windrow
from tests.dataset.same_rows_sources import SAME_ROWS_SOURCES, make_rows
from tests.end_to_end.reading import at_once
from tests.io.formats.mds_writer import encode, write_mds

_ROWS, _BLOCK_ROWS = 90, 12
# all other formats use the same readers
_ALWAYS = ("generator",)
_FORMATS_ALWAYS = ("parquet", "json", "range")


def _rows() -> windrow.Dataset:
    return windrow.range(_ROWS, block_rows=_BLOCK_ROWS)


def _written(name: str, library: str | None = None) -> Callable[[Path], windrow.Dataset]:
    """One file per block, as written by windrow."""

    def make(path: Path) -> windrow.Dataset:
        if library is not None:
            pytest.importorskip(library)
        getattr(_rows(), f"write_{name}")(path)
        dataset: windrow.Dataset = getattr(windrow, f"read_{name}")(path, target_block_bytes=1)
        return dataset

    return make


def _text(path: Path) -> windrow.Dataset:
    for part in range(5):
        lines = "".join(f"line {18 * part + at}\n" for at in range(18))
        (path / f"{part}.txt").write_text(lines)
    return windrow.read_text(path)


def _binary(path: Path) -> windrow.Dataset:
    for part in range(_ROWS):
        (path / f"{part:02}.bin").write_bytes(b"%d" % part)
    return windrow.read_binary_files(path, include_paths=True, target_block_bytes=20)


def _images(path: Path) -> windrow.Dataset:
    image = pytest.importorskip("PIL.Image")
    for part in range(_ROWS):
        content = io.BytesIO()
        image.fromarray(np.full((4, 5, 3), part, np.uint8)).save(content, "png")
        (path / f"{part:02}.png").write_bytes(content.getvalue())
    return windrow.read_images(path, size=(2, 3), target_block_bytes=150)


def _avro(path: Path) -> windrow.Dataset:
    library = pytest.importorskip("fastavro")
    schema = {"type": "record", "name": "Row", "fields": [{"name": "id", "type": "long"}]}
    for part in range(6):
        with (path / f"{part}.avro").open("wb") as file:
            library.writer(file, schema, [{"id": 15 * part + at} for at in range(15)])
    return windrow.read_avro(path, target_block_bytes=1)


def _orc(path: Path) -> windrow.Dataset:
    orc = pytest.importorskip("pyarrow.orc")
    for part in range(6):
        orc.write_table(pa.table({"id": range(15 * part, 15 * part + 15)}), path / f"{part}.orc")
    return windrow.read_orc(path, target_block_bytes=1)


def _mds(path: Path) -> windrow.Dataset:
    shards = [[{"id": encode("int", 15 * part + at)} for at in range(15)] for part in range(6)]
    return windrow.read_mds(write_mds(path / "mds", {"id": "int"}, shards, "zstd"), target_block_bytes=1)


_MAKE: dict[str, Callable[[Path], windrow.Dataset]] = {
    "parquet": _written("parquet"),
    "arrow": _written("arrow"),
    "csv": _written("csv"),
    "json": _written("json"),
    "numpy": _written("numpy"),
    "tfrecords": _written("tfrecords", "google_crc32c"),
    "avro": _avro,
    "orc": _orc,
    "mds": _mds,
    "text": _text,
    "binary files": _binary,
    "images": _images,
    "range": lambda _: _rows(),
}


def _order(dataset: windrow.Dataset, executor: str) -> list[list[Any]]:
    pipe = dataset.window(blocks_per_window=3).repeat(1).random_shuffle_each_window(seed=4)
    shards = pipe.options(executor=executor, progress=False).split(2, equal="pad")
    return at_once(shards, _read)


def _read(shard: windrow.Shard) -> list[Any]:
    with shard:
        return [repr(row) for row in shard.iter_rows()]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in _FORMATS_ALWAYS else pytest.mark.nightly) for name in _MAKE],
)
def test_format_has_the_order_of_threads(ray_local: Any, name: str, tmp_path: Path) -> None:
    dataset = _MAKE[name](tmp_path)
    assert dataset.num_blocks() > 4
    order = _order(dataset, "ray")
    assert len(order[0]) + len(order[1]) == _ROWS
    assert len({row for part in order for row in part}) == _ROWS
    assert order == _order(dataset, "threads")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in _ALWAYS else pytest.mark.nightly) for name in SAME_ROWS_SOURCES],
)
def test_source_has_the_order_of_threads(ray_local: Any, name: str, tmp_path: Path) -> None:
    dataset = SAME_ROWS_SOURCES[name](make_rows(_ROWS), 300, tmp_path)
    assert dataset.num_blocks() > 4
    order = _order(dataset, "ray")
    assert len({row for part in order for row in part}) == _ROWS
    assert order == _order(dataset, "threads")
