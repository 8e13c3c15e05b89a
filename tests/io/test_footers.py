from __future__ import annotations

import hashlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.io.files import read_all, write
from windrow.io.filesystems import Files
from windrow.io.footers import read_footer, summarise
from windrow.io.fragments import HASH_BYTES
from windrow.io.source import open_parquet


@pytest.mark.parametrize("columns", [1, 1_500])
def test_a_footer_of_any_length_is_read_and_hashed(tmp_path: Path, columns: int) -> None:
    table = pa.table({f"a column with a long name, {place}": [1, 2] for place in range(columns)})
    path = write(tmp_path / "t.parquet", table)
    content = path.read_bytes()
    length = int.from_bytes(content[-8:-4], "little") + 8
    assert (length > 64 * 1024) is (columns > 1)
    footer = read_footer(Files(str(tmp_path)), "t.parquet", "t.parquet")
    assert footer.size_bytes == len(content)
    assert footer.digest == hashlib.sha256(content[-length:]).digest()[:HASH_BYTES]
    assert footer.metadata.equals(pq.read_metadata(path))
    assert read_all(open_parquet(path)).equals(table)


def test_what_planning_keeps_of_a_footer(tmp_path: Path) -> None:
    table = pa.table({"n": [1, None, 3], "s": ["a", "bb", None], "l": [[1, 2], [], None], "e": pa.nulls(3)})
    metadata = pq.read_metadata(write(tmp_path / "t.parquet", table, row_group_size=2))
    facts = summarise(metadata, "t.parquet")
    assert facts.rows == [2, 1]
    assert facts.encoded_bytes == [metadata.row_group(place).total_byte_size for place in range(2)]
    assert sorted(facts.variable) == ["l", "s"]
    encoded, memory = facts.variable["s"]
    assert encoded == [metadata.row_group(place).column(1).total_uncompressed_size for place in range(2)]
    assert all(more >= less for more, less in zip(memory, encoded, strict=True))
    assert facts.nulls == {"n": 1, "s": 1, "l": None, "e": 3}
