from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tests.io.files import write
from windrow.core.errors import SourceError
from windrow.io.catalog.discovery import build_manifest, merge_manifest
from windrow.io.parquet.block_reader import ParquetFormat
from windrow.io.storage.filesystems import Files


def test_variable_width_columns_that_are_null_in_some_files(tmp_path: Path) -> None:
    """Row groups of files in which a column is null keep their indices."""
    write(tmp_path / "1", pa.table({"a": ["x"] * 9, "b": pa.nulls(9)}), row_group_size=3)
    write(tmp_path / "2", pa.table({"a": pa.nulls(2), "b": pa.nulls(2)}))
    write(tmp_path / "3", pa.table({"a": pa.nulls(1), "b": ["y" * 50]}))
    manifest = build_manifest(Files(str(tmp_path)), ["1", "2", "3"], ParquetFormat())
    assert manifest.rows.tolist() == [3, 3, 3, 2, 1]
    assert manifest.row_group_ends.tolist() == [3, 4, 5]
    assert (manifest.variable["a"].encoded > 0).tolist() == [True, True, True, False, False]
    assert (manifest.variable["b"].encoded > 0).tolist() == [False, False, False, False, True]
    assert manifest.variable["b"].memory[4] >= 54
    assert manifest.null_counts == {"a": 3, "b": 11}


def test_error_of_a_selected_column_names_the_file_with_another_type(tmp_path: Path) -> None:
    write(tmp_path / "1", pa.table({"a": ["x"], "b": [1]}))
    write(tmp_path / "2", pa.table({"a": [1], "b": [1]}))
    files = Files(str(tmp_path))
    manifest = build_manifest(files, ["1", "2"], ParquetFormat())
    merged = merge_manifest(manifest, ParquetFormat(), files.name)
    merged.check(["b"])
    with pytest.raises(SourceError, match=rf"column 'a' is int64 in {tmp_path}/2 but string in {tmp_path}/1"):
        merged.check(["b", "a"])
