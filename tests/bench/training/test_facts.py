from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from bench.training.facts import read_facts


def _write(path: Path, **columns: list[object]) -> str:
    pq.write_table(pa.table(columns), path, row_group_size=2)
    return str(path)


def test_facts_of_two_files(tmp_path: Path) -> None:
    one = _write(tmp_path / "a.parquet", key=[2, 0, 1], word=["a", "bc", ""], holes=[1, None, 2])
    two = _write(tmp_path / "b.parquet", key=[3, 4], word=["x", "y"], holes=[1, 2])
    facts = read_facts([one, two], threads=2)
    assert (facts.rows, facts.row_groups, facts.key) == (5, 3, "key")
    numbers, letters, offsets = 2 * 5 * 8, 5, 4 * 5
    assert facts.decoded_bytes == numbers + letters + offsets
