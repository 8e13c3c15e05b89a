"""What is known of pages is never trusted blindly, is found once by many threads, and holds no request's bytes."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import windrow
from tests.io.files import cut_source, open_parquet, read_all, write
from windrow.io.parquet import row_ranges, verified_files
from windrow.io.parquet.page_index import ChunkPages
from windrow.io.parquet.verified_files import open_block
from windrow.io.storage.file_versions import RowGroups
from windrow.io.storage.filesystems import Files

ROWS = 2_000


def make_table() -> pa.Table:
    numbers = np.arange(ROWS)
    return pa.table(
        {
            "n": numbers,
            "word": [f"word {n % 300}" for n in numbers.tolist()],
            "list": [list(range(n % 4)) for n in numbers.tolist()],
        }
    )


def write_pages(path: Path, **options: Any) -> Path:
    return write(
        path, make_table(), data_page_size=256, write_batch_size=16, write_page_index=True, **options
    )


def find_indexes(path: Path) -> list[tuple[int, int]]:
    """Offset and bytes of the offset index of every column."""
    source = open_parquet(path)
    with open_block(source.files, source.addresses([0])[0].locator[0], "x") as block:
        found = [block.footer.pages(0, leaf, is_mapped=True) for leaf in range(3)]
    return [pages.chunk.index for pages in found if pages is not None and pages.chunk.index is not None]


def overwrite(path: Path, places: list[tuple[int, int]], make: Any) -> None:
    content = bytearray(path.read_bytes())
    for start, size in places:
        content[start : start + size] = make(bytes(content[start : start + size]))
    path.write_bytes(content)


def shift_rows(index: bytes) -> bytes:
    """An index that still parses: each page after the first begins a few rows later."""
    changed = bytearray(index)
    for at in range(20, len(changed)):
        # i32 compressed_page_size, then i64 first_row_index as the next field of the struct
        if changed[at] == 0x16 and changed[at + 1] & 0x80 and at + 2 < len(changed):
            changed[at + 1] ^= 0x04
    return bytes(changed)


@pytest.mark.parametrize(
    "damage",
    [
        lambda index: b"\xff" * len(index),
        lambda index: b"\0" * len(index),
        lambda index: index[::-1],
        lambda index: index[: len(index) // 2] + b"\0" * (len(index) - len(index) // 2),
        shift_rows,
    ],
    ids=["ones", "zeros", "reversed", "half", "other rows"],
)
def test_damaged_offset_indexes_change_no_row(tmp_path: Path, damage: Any) -> None:
    path = write_pages(tmp_path / "x.parquet")
    indexes = find_indexes(path)
    assert len(indexes) == 3
    before = path.read_bytes()
    overwrite(path, indexes, damage)
    assert path.read_bytes() != before
    assert read_all(cut_source(open_parquet(path), 70)).equals(pq.read_table(path))


@pytest.mark.parametrize("kind", [pa.int64(), pa.list_(pa.int64())], ids=str)
def test_rows_ahead_of_a_damaged_page_are_read_in_any_order(tmp_path: Path, kind: pa.DataType) -> None:
    rows = 40_000
    values = pa.array([[n] for n in range(rows)] if pa.types.is_list(kind) else range(rows), kind)
    options = {"use_dictionary": False, "compression": "none", "write_statistics": False}
    path = write(tmp_path / "x.parquet", pa.table({"x": values}), data_page_size=1_024, **options)
    with open_block(Files(str(tmp_path)), open_parquet(path).addresses([0])[0].locator[0], "x") as block:
        pages = _pages(block)
        assert pages.cover(block.read_range, 0, rows) is not None
    # the header of a page in the middle; without a checksum, other values would be delivered
    start = pages.starts[len(pages.starts) // 2]
    overwrite(path, [(start, 12)], lambda content: b"\xff" * len(content))

    def find_corrupt(order: Any) -> set[int]:
        source = cut_source(open_parquet(path), rows // 16)
        verified_files._FOOTER_CACHE.forget()
        addresses = source.addresses(range(len(source.blocks.rows)))
        corrupt = set()
        for number in order(range(len(addresses))):
            first = addresses[number].locator[0].first_row
            try:
                table = source.reader.read(addresses[number])
            except windrow.SourceError:
                corrupt.add(number)
            else:
                assert table.column("x").combine_chunks().equals(values.slice(first, table.num_rows))
        assert len(addresses) > 10
        return corrupt

    forwards = find_corrupt(list)
    assert 0 < len(forwards) < 12
    assert find_corrupt(lambda numbers: list(reversed(numbers))) == forwards
    assert find_corrupt(lambda numbers: [*numbers[1::2], *numbers[::2]]) == forwards


def test_threads_that_look_for_pages_at_once_find_the_same(tmp_path: Path) -> None:
    rows = 40_000
    table = pa.table({"n": np.arange(rows)})
    path = write(tmp_path / "x.parquet", table, data_page_size=256, write_batch_size=16, use_dictionary=False)
    source = open_parquet(path)
    groups: RowGroups = source.addresses([0])[0].locator[0]
    cuts = [(first, min(first + 900, rows)) for first in range(0, rows, 700)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with open_block(Files(str(tmp_path)), groups, "x") as block:
            chunk = _pages(block).chunk

            def find(threads: int) -> tuple[list[int], list[int]]:
                pages = ChunkPages(chunk, piece_bytes=None)
                with ThreadPoolExecutor(threads) as pool:
                    spans = list(pool.map(lambda cut: pages.cover(block.read_range, *cut), cuts))
                for (first, stop), span in zip(cuts, spans, strict=True):
                    assert span is not None
                    assert span.first_row <= first < stop <= span.stop_row
                return pages.starts, pages.first_rows

            expected = find(1)
            assert len(expected[0]) > 10
            for _ in range(20):
                assert find(8) == expected
    finally:
        sys.setswitchinterval(interval)


def _pages(block: Any) -> ChunkPages:
    pages = block.footer.pages(0, 0, is_mapped=True)
    assert pages is not None
    return pages


FORK = """
import os, sys, threading
import windrow
from tests.io.files import cut_source, open_parquet, read_all
from windrow.io.parquet.verified_files import open_block

source = cut_source(open_parquet(sys.argv[1]), 70)
rows = read_all(source).num_rows
address = source.addresses([0])[0]
with open_block(source.files, address.locator[0], "x") as block:
    found = [block.footer.pages(0, leaf, is_mapped=True) for leaf in range(3)]
# as a thread does that is looking for pages at this moment
for pages in found:
    pages._lock.acquire()
child = os.fork()
if child == 0:
    threading.Timer(20, os._exit, (1,)).start()
    os._exit(0 if read_all(source).num_rows == rows else 2)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_process_does_not_wait_for_a_search_of_its_parent(tmp_path: Path) -> None:
    path = write_pages(tmp_path / "x.parquet")
    command = [sys.executable, "-W", "ignore", "-c", FORK, str(path)]
    assert subprocess.run(command, timeout=120).returncode == 0


class _Answer(bytearray):
    """The bytes of a request, which can be watched."""


@pytest.fixture
def store() -> Iterator[tuple[Any, list[weakref.ref[_Answer]]]]:
    answers: list[weakref.ref[_Answer]] = []

    class Watched(MemoryFileSystem):  # type: ignore[misc]
        cachable = False

        def cat_file(self, path: str, start: Any = None, end: Any = None, **options: Any) -> Any:
            answer = _Answer(super().cat_file(path, start, end, **options))
            answers.append(weakref.ref(answer))
            return answer

    filesystem = Watched()
    yield filesystem, answers
    filesystem.rm("/pages", recursive=True)


def test_dictionaries_that_are_kept_hold_no_request(tmp_path: Path, store: Any) -> None:
    filesystem, answers = store
    path = write_pages(tmp_path / "x.parquet")
    filesystem.pipe_file("/pages/x.parquet", path.read_bytes())
    row_ranges._DICTIONARIES.forget()
    source = cut_source(open_parquet("/pages/x.parquet", filesystem=filesystem), 70)
    address = source.addresses([3])[0]
    first = address.locator[0].first_row
    table = source.reader.read(address)
    expected = make_table().slice(first, table.num_rows)
    assert table.cast(expected.schema).equals(expected)
    assert row_ranges._DICTIONARIES._cached
    del table, expected
    for thread in threading.enumerate():
        if thread.name.startswith("windrow-") and thread is not threading.current_thread():
            thread.join(5)
    gc.collect()
    assert len(answers) > 1
    assert [answer() for answer in answers if answer() is not None] == []
    # and the next piece does not request them again
    before = len(answers)
    assert source.reader.read(source.addresses([4])[0]).num_rows > 0
    assert len(answers) - before <= 3
