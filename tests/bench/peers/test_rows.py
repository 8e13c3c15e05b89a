from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench.peers.base import choose_collate, convert_once, iterate_rows
from tests.bench.training.test_results import REQUEST


def test_rows_are_in_stored_order(tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in ("a.parquet", "b.parquet")]
    for number, path in enumerate(paths):
        pq.write_table(
            pa.table({"key": [number * 3, number * 3 + 1, number * 3 + 2]}), path, row_group_size=2
        )
    assert [row["key"] for row in iterate_rows(paths)] == list(range(6))


def test_rows_of_lists_are_arrays_and_their_batches_lists(tmp_path: Path) -> None:
    path = str(tmp_path / "a.parquet")
    pq.write_table(pa.table({"tokens": [[1, 2], [3]], "text": ["a", "b"]}), path)
    rows = list(iterate_rows([path]))
    assert [(type(row["tokens"]), row["text"]) for row in rows] == [(np.ndarray, "a"), (np.ndarray, "b")]
    collate = choose_collate(replace(REQUEST, schema=pa.schema([("text", pa.string())]), key=None))
    assert collate is not None
    batch = collate(rows)
    assert [row.tolist() for row in batch["tokens"]] == [[1, 2], [3]]
    assert batch["text"] == ["a", "b"]
    assert choose_collate(REQUEST) is None


def test_files_are_converted_once_and_completely(tmp_path: Path) -> None:
    request = replace(REQUEST, converted=str(tmp_path / "converted"))
    calls: list[Path] = []

    def convert(home: Path) -> None:
        calls.append(home)
        home.mkdir()
        (home / "rows").write_text("done" if len(calls) > 1 else "half")
        if len(calls) == 1:
            raise RuntimeError("ended")

    with pytest.raises(RuntimeError, match="ended"):
        convert_once(request, convert)
    homes = {convert_once(request, convert) for _ in range(2)}
    assert len(calls) == 2
    assert [(home / "rows").read_text() for home in homes] == ["done"]
