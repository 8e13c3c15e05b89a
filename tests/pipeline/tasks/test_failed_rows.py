"""Errors of transforms of single rows name the file, row group and row, before the shuffle and behind it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import windrow
from windrow.core.errors import TransformError

ROWS, BROKEN = 12, 7
STORED = r"The row is stored in .*a\.parquet, row group 1, row 3$"


@pytest.fixture
def images(tmp_path: Path) -> Path:
    pillow = pytest.importorskip("PIL.Image")
    png = io.BytesIO()
    pillow.new("RGB", (4, 4)).save(png, "png")
    rows = [b"broken" if row == BROKEN else png.getvalue() for row in range(ROWS)]
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("0", "a", "b"):
        table = pa.table({"image": rows if name == "a" else [png.getvalue()] * ROWS, "k": range(ROWS)})
        pq.write_table(table, folder / f"{name}.parquet", row_group_size=4)
    return folder


def failing(rows: Any) -> None:
    for _ in rows.iter_batches(batch_size=5):
        pass


@pytest.mark.parametrize("size", ["1B", "1MiB"])
@pytest.mark.parametrize("executor", ["threads", "ray"])
@pytest.mark.parametrize("shuffled_first", [False, True])
def test_a_run_names_where_the_row_is_stored(
    images: Path, executor: str, shuffled_first: bool, size: str, request: pytest.FixtureRequest
) -> None:
    if executor == "ray":
        request.getfixturevalue("ray_local")
    rows = windrow.read_parquet(images, target_block_bytes=size).options(executor=executor)
    pipe = rows.repeat(2).random_shuffle_each_window(seed=3)
    pipe = pipe.decode_images("image") if shuffled_first else rows.decode_images("image").repeat(1)
    with pytest.raises(TransformError, match=STORED):
        failing(pipe)


def test_the_first_row_that_fails_is_named_in_processes_too(images: Path) -> None:
    rows = windrow.read_parquet(images).options(executor="threads")
    with pytest.raises(TransformError, match=STORED):
        failing(rows.decode_images("image", compute="processes", batch_size=5))


def test_writes_schemas_and_operations_name_it(images: Path, tmp_path: Path) -> None:
    rows = windrow.read_parquet(images).options(executor="threads").decode_images("image")
    for call in (
        lambda: rows.write_parquet(tmp_path / "out"),
        lambda: failing(rows.sort("k")),
        lambda: windrow.read_parquet(images / "a.parquet").decode_images("image").take(),
        lambda: failing(rows.options(row_id_column="id")),
    ):
        with pytest.raises(TransformError, match=STORED):
            call()


def test_a_filter_of_the_source_does_not_move_it(images: Path) -> None:
    rows = windrow.read_parquet(images, filter=pc.field("k") >= 6).options(executor="threads")
    with pytest.raises(TransformError, match=STORED):
        failing(rows.decode_images("image"))


def test_nothing_is_said_where_rows_have_been_dropped_before(images: Path) -> None:
    rows = windrow.read_parquet(images).filter(pc.field("k") >= 6).decode_images("image")
    with pytest.raises(TransformError) as raised:
        failing(rows)
    assert "is stored in" not in str(raised.value)


def test_nothing_is_said_of_rows_in_memory(images: Path) -> None:
    rows = windrow.from_items([{"image": b"broken"}]).decode_images("image")
    with pytest.raises(TransformError) as raised:
        failing(rows)
    assert "is stored in" not in str(raised.value)


def test_a_row_put_aside_for_a_null_says_so(tmp_path: Path) -> None:
    rows = windrow.from_items([{"x": 1}, {"x": None}]).map(lambda row: {"y": row["x"] + 1})
    with pytest.warns(RuntimeWarning, match="failed for 1 row"):
        rows.options(executor="threads").write_parquet(tmp_path / "out", failed_rows=tmp_path / "failed")
    (row,) = windrow.read_parquet(tmp_path / "failed").take()
    assert "Nulls, as in column 'x', are None" in row["windrow_error"]
