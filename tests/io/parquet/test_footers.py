from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import windrow
from tests.io.chunks import needs_library
from tests.io.files import open_parquet, read_all, write
from tests.library_versions import ARROW
from windrow.core.errors import SourceError
from windrow.io.catalog.manifest import HASH_BYTES
from windrow.io.parquet import verified_files
from windrow.io.parquet.footers import Footer, read_footer, summarise
from windrow.io.storage.filesystems import Files


@pytest.mark.parametrize("columns", [1, 1_500])
def test_footers_of_any_length_are_read_and_hashed(tmp_path: Path, columns: int) -> None:
    table = pa.table({f"a column with a long name, {place}": [1, 2] for place in range(columns)})
    path = write(tmp_path / "t.parquet", table)
    content = path.read_bytes()
    length = int.from_bytes(content[-8:-4], "little") + 8
    assert (length > 64 * 1024) is (columns > 1)
    footer = read_footer(Files(str(tmp_path)), "t.parquet", "t.parquet")
    assert footer.version.size_bytes == len(content)
    assert footer.digest == hashlib.sha256(content[-length:]).digest()[:HASH_BYTES]
    assert footer.metadata.equals(pq.read_metadata(path))
    assert read_all(open_parquet(path)).equals(table)


def test_summary_of_a_footer(tmp_path: Path) -> None:
    table = pa.table({"n": [1, None, 3], "s": ["a", "bb", None], "l": [[1, 2], [], None], "e": pa.nulls(3)})
    write(tmp_path / "t.parquet", table, row_group_size=2)
    footer = read_footer(Files(str(tmp_path)), "t.parquet", "t.parquet")
    metadata = footer.metadata
    facts = summarise(metadata, footer.texts, "t.parquet")
    assert facts.rows == [2, 1]
    assert facts.encoded_bytes == [metadata.row_group(place).total_byte_size for place in range(2)]
    assert sorted(facts.variable) == ["l", "s"]
    encoded, memory = facts.variable["s"]
    assert encoded == [metadata.row_group(place).column(1).total_uncompressed_size for place in range(2)]
    assert all(more >= less for more, less in zip(memory, encoded, strict=True))
    assert facts.nulls == {"n": 1, "s": 1, "l": None, "e": 3}


@needs_library
@pytest.mark.skipif(ARROW < 20, reason="pyarrow does not write the sizes of text")
def test_text_sizes_are_read_from_the_footer(tmp_path: Path) -> None:
    words = ["a" * 500, None, "z", "m" * 90] * 5
    table = pa.table({"n": range(20), "text": words, "texts": [[word] for word in words]})
    write(tmp_path / "t.parquet", table, row_group_size=10)
    footer = read_footer(Files(str(tmp_path)), "t.parquet", "t.parquet")
    told = [sum(len(word or "") for word in words[:10]), sum(len(word or "") for word in words[10:])]
    assert footer.texts.tolist() == [[-1, each, each] for each in told]
    facts = summarise(footer.metadata, footer.texts, "t.parquet")
    assert facts.variable["text"][1] == [10 * 4 + each for each in told]
    assert facts.variable["texts"][1] == [2 * 10 * 4 + each for each in told]
    unknown = summarise(footer.metadata, np.full_like(footer.texts, -1), "t.parquet")
    assert unknown.variable["text"][0] == facts.variable["text"][0]
    assert unknown.variable["text"][1] != facts.variable["text"][1]


@needs_library
@pytest.mark.skipif(ARROW < 20, reason="pyarrow does not write the sizes of text")
def test_text_sizes_of_delta_encoded_columns_are_ignored(tmp_path: Path) -> None:
    table = pa.table({"text": ["x" * 100] * 50})
    encoding = {"use_dictionary": False, "column_encoding": {"text": "DELTA_BYTE_ARRAY"}}
    write(tmp_path / "t.parquet", table, **encoding)
    footer = read_footer(Files(str(tmp_path)), "t.parquet", "t.parquet")
    assert footer.texts.tolist() == [[100]], "Arrow counts the first value only"
    facts = summarise(footer.metadata, footer.texts, "t.parquet")
    assert facts.variable["text"][1] == [50 * (4 + 100)]


def test_impossible_text_sizes_are_noticed(tmp_path: Path) -> None:
    write(tmp_path / "t.parquet", pa.table({"text": ["a", "b"]}))
    footer = read_footer(Files(str(tmp_path)), "t.parquet", "t.parquet")
    assert summarise(footer.metadata, footer.texts, "t.parquet").is_possible
    assert not summarise(footer.metadata, np.full_like(footer.texts, 2**50), "t.parquet").is_possible


def test_row_groups_that_state_more_rows_than_values_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", pa.table({"n": range(12_345), "m": range(12_345)}))
    content = path.read_bytes()
    # a row group states its rows after its columns: 2^31 - 1 in place of 12,345, as zigzag numbers
    at = content.rindex(bytes([0xF2, 0xC0, 0x01]))
    path.write_bytes(content[:at] + bytes([0xFE, 0xFF, 0xFF, 0xFF, 0x0F]) + content[at + 3 :])
    raw = path.read_bytes()
    path.write_bytes(raw[:-8] + (int.from_bytes(raw[-8:-4], "little") + 2).to_bytes(4, "little") + raw[-4:])
    assert pq.read_metadata(path).row_group(0).num_rows == 2**31 - 1
    with pytest.raises(
        SourceError,
        match=r"t\.parquet .*row group 0 states 2147483647 rows, but only 12345 values of column n",
    ):
        windrow.read_parquet(path)


class _Client(MemoryFileSystem):  # type: ignore[misc]
    """One of several clients of the same store, which differ by their arguments."""

    cachable = True


def test_clients_of_one_store_share_footers(monkeypatch: pytest.MonkeyPatch) -> None:
    clients = [_Client(client=name) for name in "ab"]
    assert clients[0] != clients[1]
    with clients[0].open("/footers/t.parquet", "wb") as file:
        pq.write_table(pa.table({"n": range(100)}), file, row_group_size=10)
    reads: list[str] = []

    def counted(files: Files, path: str, name: str) -> Footer:
        reads.append(name)
        return read_footer(files, path, name)

    monkeypatch.setattr(verified_files, "read_footer", counted)
    sources = [
        windrow.read_parquet("/footers/t.parquet", filesystem=client, target_block_bytes=1)._plan.source
        for client in clients
    ]
    found = [
        source.reader.read(source.addresses([block])[0])["n"].to_pylist()
        for block in range(10)
        for source in sources
    ]
    assert found == [list(range(first, first + 10)) for first in range(0, 100, 10) for _ in sources]
    assert reads == [], "planning has read the footer"
