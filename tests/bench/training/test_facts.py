from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench.training.facts import read_facts


def _write(path: Path, **columns: list[object]) -> str:
    pq.write_table(pa.table(columns), path, row_group_size=2)
    return str(path)


def test_facts_of_two_files(tmp_path: Path) -> None:
    one = _write(tmp_path / "a.parquet", key=[2, 0, 1], word=["a", "bc", ""], holes=[1, None, 2])
    two = _write(tmp_path / "b.parquet", key=[3, 4], word=["x", "y"], holes=[1, 2])
    facts = read_facts([one, two], None, "key", threads=2)
    assert (facts.rows, facts.row_groups, facts.key) == (5, 3, "key")
    assert dict(facts.sums) == {"key": (5, 10, 30)}
    assert facts.tensor_columns == ("key", "holes")
    assert facts.categories == ("key",)
    numbers, letters, offsets = 2 * 5 * 8, 5, 4 * 5
    assert facts.decoded_bytes == numbers + letters + offsets


def test_column_with_a_gap_is_not_a_key(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.parquet", key=[0, 1, 3])
    assert read_facts([path], None, "key", threads=1).key is None


def test_categories_are_integers_from_0_to_63(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.parquet", low=[0, 63], high=[0, 64], below=[-1, 5], real=[0.0, 1.0])
    assert read_facts([path], None, "key", threads=1).categories == ("low",)


def test_bad_input_is_named(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.parquet", key=[0])
    with pytest.raises(ValueError, match="no column 'fare'; it has key"):
        read_facts([path], ["fare"], "key", threads=1)
    pq.write_table(pa.table({"key": pa.array([], pa.int64())}), tmp_path / "b.parquet")
    with pytest.raises(ValueError, match="contain no rows"):
        read_facts([str(tmp_path / "b.parquet")], None, "key", threads=1)
