from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from bench.data.files import make_data
from bench.peers.environments import make_sample, name_files
from bench.training.facts import read_facts


@pytest.mark.parametrize("rows", [130, 1_000, 100_000])
def test_sample_has_the_first_rows_in_many_row_groups(rows: int, tmp_path: Path) -> None:
    paths = make_data(500_000, tmp_path)
    whole = read_facts(paths, threads=1)
    files = make_sample(paths, min(rows, whole.rows), tmp_path)
    facts = read_facts(files, threads=1)
    assert (facts.rows, facts.key) == (min(rows, whole.rows), "key")
    assert facts.schema == whole.schema
    assert len(files) <= 16
    assert 32 < facts.row_groups <= 64
    keys = [key for file in files for key in pq.read_table(file)["key"].to_pylist()]
    assert keys == list(range(facts.rows))
    assert make_sample(paths, min(rows, whole.rows), tmp_path) == files


def test_changed_files_have_another_name(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(b"one")
    before = name_files([str(path)])
    path.write_bytes(b"three")
    assert name_files([str(path)]) != before
