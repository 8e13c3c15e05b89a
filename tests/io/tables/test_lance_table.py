"""Lance tables: blobs, vectors, late materialization under a filter, tags."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import windrow
from tests.io.files import read_all
from tests.library_versions import is_older
from windrow.io.catalog.listed_source import ListedSource
from windrow.io.tables import lance_table

lance = pytest.importorskip("lance")

ROWS = 200


@pytest.fixture
def path(tmp_path: Path) -> str:
    data = pa.table(
        {
            "x": np.arange(ROWS),
            "v": pa.array([[row, row + 0.5] for row in range(ROWS)], pa.list_(pa.float32(), 2)),
            "s": [f"s{row}" for row in range(ROWS)],
        }
    )
    lance.write_dataset(data, str(tmp_path / "t"), max_rows_per_file=80)
    return str(tmp_path / "t")


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[tuple[tuple[str, ...], int]]:
    """The columns and rows of each scan."""
    found: list[tuple[tuple[str, ...], int]] = []
    scan = lance_table.scan_rows

    def noted(fragment: Any, columns: Any, start: int, rows: int) -> pa.Table:
        found.append((tuple(columns), rows))
        return scan(fragment, columns, start, rows)

    monkeypatch.setattr(lance_table, "scan_rows", noted)
    return found


def test_blocks_are_row_ranges_of_fragments(path: str) -> None:
    lance.dataset(path).delete("x >= 10 and x < 15")
    dataset = windrow.read_lance(path, target_block_bytes=20 * 40)
    source = dataset._plan.source
    assert isinstance(source, ListedSource)
    assert source.fragments == 3
    assert all(rows <= 40 for rows in source.blocks.rows)
    assert int(source.blocks.rows.sum()) == ROWS - 5
    table = read_all(source)  # type: ignore[arg-type]
    assert table["x"].to_pylist() == [row for row in range(ROWS) if not 10 <= row < 15]
    assert table["v"].to_pylist()[20] == [25.0, 25.5]
    # integers and fixed-length vectors have a fixed width
    assert windrow.read_lance(path, columns=["x", "v"])._plan.source.blocks.bytes_exact


def test_filter_reads_its_own_columns_first(path: str, scans: list[tuple[tuple[str, ...], int]]) -> None:
    dataset = windrow.read_lance(path, filter=pc.field("x") >= 199)
    # planning reads some texts of each fragment, for their size
    assert scans == [(("s",), 4)] * 3
    scans.clear()
    assert dataset.take() == [{"x": 199, "v": [199.0, 199.5], "s": "s199"}]
    # two fragments have no match, so only x is scanned; the one match in the third is fetched by row
    assert scans == [(("x",), 80), (("x",), 80), (("x",), 40)]
    within = windrow.read_lance(path, filter=pc.field("x") == 150, target_block_bytes=20 * 40)
    assert within.take() == [{"x": 150, "v": [150.0, 150.5], "s": "s150"}]
    scans.clear()
    most = windrow.read_lance(path, filter=pc.field("x") >= 100, columns=["s"])
    assert [row["s"] for row in most.iter_rows()] == [f"s{row}" for row in range(100, ROWS)]
    assert (("s",), 80) in scans
    scans.clear()
    assert most.count() == 100
    assert {columns for columns, _ in scans} == {("x",)}


def test_blobs_are_read_as_bytes(tmp_path: Path) -> None:
    schema = pa.schema(
        [
            pa.field("x", pa.int64()),
            pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"}),
        ]
    )
    content = [bytes([row]) * 1_000 for row in range(50)]
    lance.write_dataset(pa.table([range(50), content], schema=schema), str(tmp_path / "t"))
    if is_older("pylance", 2):
        with pytest.raises(
            windrow.SourceError, match=r"t cannot be opened: blobs, as in column 'b'.* upgrade"
        ):
            windrow.read_lance(tmp_path / "t")
        return
    dataset = windrow.read_lance(tmp_path / "t")
    assert dataset.schema().field("b").type == pa.large_binary()
    assert [row["b"] for row in dataset.iter_rows()] == content
    assert windrow.read_lance(tmp_path / "t", filter=pc.field("x") == 7, columns=["b"]).take() == [
        {"b": content[7]}
    ]
    assert windrow.read_lance(tmp_path / "t", target_block_bytes="10KB").num_blocks() == 6


def test_versions_by_tag_and_time(path: str) -> None:
    table = lance.dataset(path)
    table.tags.create("first", 1)
    between = datetime.datetime.now(datetime.timezone.utc)
    table.delete("x > 9")
    assert windrow.read_lance(path).count() == 10
    assert windrow.read_lance(path, version="first").count() == ROWS
    assert windrow.read_lance(path, version=between).count() == ROWS
    with pytest.raises(windrow.SourceError, match="none"):
        windrow.read_lance(path, version="none")


def test_recreated_table_is_another_table(path: str) -> None:
    import shutil

    dataset = windrow.read_lance(path)
    shutil.rmtree(path)
    lance.write_dataset(pa.table({"x": [1], "v": [[0.0]], "s": ["a"]}), path)
    with pytest.raises(windrow.SourceError, match="differs from the one that was listed"):
        dataset.take()


def test_cleaned_up_version_is_reported(path: str) -> None:
    dataset = windrow.read_lance(path)
    table = lance.dataset(path)
    table.delete("x < 100")
    table.optimize.compact_files()
    lance.dataset(path).cleanup_old_versions(datetime.timedelta(0))
    with pytest.raises(windrow.SourceError, match=r"not found.*cleaned up"):
        dataset.take()


def test_errors_name_the_problem(path: str, tmp_path: Path) -> None:
    with pytest.raises(windrow.SourceError, match="none"):
        windrow.read_lance(tmp_path / "none")
    with pytest.raises(windrow.PlanError, match="path or URL"):
        windrow.read_lance(3)  # type: ignore[arg-type]
    with pytest.raises(windrow.PlanError, match="name of a tag"):
        windrow.read_lance(path, version=True)
    text = repr(windrow.read_lance(path, storage_options={"secret": "HUSH"})._plan.source.reader)
    assert "HUSH" not in text


@pytest.mark.parametrize("target", ["t", "t/data", "", "link"])
def test_overwriting_the_source_table_raises(path: str, target: str) -> None:
    folder = Path(path).parent
    (folder / "link").symlink_to("t")
    data = windrow.read_lance(path).options(executor="threads")
    with pytest.raises(windrow.PlanError, match=r"would replace what is being read, .*\.lance"):
        data.write_parquet(folder / target, mode="overwrite")
    assert windrow.read_lance(path).count() == ROWS
