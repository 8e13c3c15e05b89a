"""Blocks that are read as one: the same rows in the same order, in parts of several blocks and files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import windrow
from tests.io.corruption import move_chunk, whole
from tests.io.files import cut_source, open_parquet, write
from windrow.core.source import join_blocks
from windrow.io.formats import row_group_format
from windrow.io.parquet import decoder_library, stored_rows
from windrow.io.parquet.block_reader import ParquetReader
from windrow.io.parquet.chunks import IS_STORED, NUMBERS, PAGES, Chunk, chunk_table, move_chunks
from windrow.io.parquet.decoder_library import JoinedFiles
from windrow.io.parquet.verified_files import BlockFile, open_block
from windrow.io.storage import mapped_files


def rows_of(start: int, stop: int) -> pa.Table:
    numbers = range(start, stop)
    return pa.table(
        {
            "n": np.arange(start, stop),
            "maybe": pa.array([None if n % 3 == 0 else n / 2 for n in numbers], pa.float32()),
            "text": pa.array([None if n % 4 == 1 else "x" * (n % 5) for n in numbers], pa.string()),
            "tokens": pa.array([list(range(n % 4)) for n in numbers], pa.list_(pa.int32())),
        }
    )


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file is a large one, and a part ends with some hundred bytes."""
    monkeypatch.setattr(row_group_format, "_LARGE_FILE_BYTES", 1)
    monkeypatch.setattr(stored_rows, "PART_BYTES", 1_500)


def read_joined(source: Any, blocks: list[int]) -> list[pa.Table]:
    joined = join_blocks(source.reader, source.addresses(blocks))
    assert joined is not None
    return [part.select(list(range(len(part.schema)))) for part in source.reader.parts(joined)]


@pytest.mark.usefixtures("small_parts")
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_parts_of_joined_blocks_hold_the_rows_of_the_blocks(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path, start = tmp_path_factory.mktemp("joined"), 0
    for number, size in enumerate(data.draw(st.lists(st.integers(0, 60), min_size=1, max_size=5))):
        write(
            path / f"{number}.parquet",
            rows_of(start, start + size),
            row_group_size=data.draw(st.integers(1, 30)),
        )
        start += size
    source = open_parquet(path, target_block_bytes=data.draw(st.sampled_from([1, 600, 2**20])))
    blocks = data.draw(st.lists(st.integers(0, max(0, len(source.blocks.rows) - 1)), min_size=1, max_size=9))
    if not len(source.blocks.rows):
        return
    tables = read_joined(source, blocks)
    expected = pa.concat_tables([source.reader.read(address) for address in source.addresses(blocks)])
    assert pa.concat_tables([expected.slice(0, 0), *tables]).to_pylist() == expected.to_pylist()


def test_a_part_has_row_groups_of_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_group_format, "_LARGE_FILE_BYTES", 1)
    for number in range(4):
        write(tmp_path / f"{number}.parquet", rows_of(10 * number, 10 * number + 10), row_group_size=5)
    source = open_parquet(tmp_path, target_block_bytes=1)
    assert len(source.blocks.rows) == 8
    (table,) = read_joined(source, [1, 2, 3, 6])
    assert table.column("n").to_pylist() == [*range(5, 20), *range(30, 35)]
    joined = join_blocks(source.reader, source.addresses([2, 3]))
    assert joined is not None
    assert joined.origin == f"{tmp_path}/1.parquet, row groups 0-1"
    assert len(joined.locator) == 1


def test_some_blocks_are_read_one_by_one(tmp_path: Path) -> None:
    """Those of which rows can be dropped, pieces of row groups, and remote ones."""
    write(tmp_path / "0.parquet", rows_of(0, 40), row_group_size=10)
    filtered = open_parquet(tmp_path, target_block_bytes=1, filter=pc.field("n") > 5)
    assert join_blocks(filtered.reader, filtered.addresses([0, 1])) is None
    cut = cut_source(open_parquet(tmp_path), 4)
    assert join_blocks(cut.reader, cut.addresses([0, 1])) is None
    with fsspec.open(f"memory://{tmp_path}/0.parquet", "wb") as file:
        file.write((tmp_path / "0.parquet").read_bytes())
    remote = open_parquet(f"memory://{tmp_path}", target_block_bytes=1)
    assert join_blocks(remote.reader, remote.addresses([0, 1])) is None


@pytest.mark.usefixtures("small_parts")
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.integers(1, 70), min_size=1, max_size=5),
    group=st.integers(1, 20),
    window=st.integers(1, 9),
    kind=st.sampled_from(["plain", "mixture", "union"]),
)
def test_the_order_is_that_of_blocks_read_one_by_one(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], group: int, window: int, kind: str
) -> None:
    path, start = tmp_path_factory.mktemp("joined"), 0
    for number, size in enumerate(sizes):
        write(path / f"{number}.parquet", rows_of(start, start + size), row_group_size=group)
        start += size

    # files of the same names with other rows
    other = tmp_path_factory.mktemp("other")
    for number, size in enumerate(sizes):
        write(other / f"{number}.parquet", rows_of(1_000, 1_000 + size), row_group_size=group)

    def deliver() -> list[Any]:
        dataset = windrow.read_parquet(str(path), target_block_bytes=1)
        if kind == "union":
            dataset = dataset.union(windrow.read_parquet(str(other), target_block_bytes=1))
        pipe = dataset.window(blocks_per_window=window).repeat(1).random_shuffle_each_window(seed=3)
        if kind == "mixture":
            pipe = windrow.mixture(
                {"one": pipe, "other": pipe}, {"one": 1, "other": 2}, seed=1, when_exhausted="drop"
            )
        with pipe.options(executor="threads", progress=False).iterator() as shard:
            return [row for epoch in shard.iter_epochs() for row in epoch.iter_rows()]

    found = deliver()
    assert len(found) == sum(sizes) * (1 + (kind != "plain"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ParquetReader, "join_blocks", lambda reader, addresses: None)
        assert deliver() == found


@pytest.mark.usefixtures("small_parts")
def test_footers_that_state_no_bytes_of_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        write(tmp_path / f"{number}.parquet", rows_of(0, 40), row_group_size=4)
    monkeypatch.setattr(
        BlockFile, "group_bytes", property(lambda block: [0] * (block.groups.stop - block.groups.start))
    )
    source = open_parquet(tmp_path, target_block_bytes=1)
    assert sum(table.num_rows for table in read_joined(source, list(range(30)))) == 120
    assert sum(part.num_rows for part in source.reader.parts(source.addresses([3])[0])) == 4


@pytest.mark.usefixtures("small_parts")
def test_a_part_has_row_groups_of_few_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_rows, "PART_BYTES", 2**20)
    monkeypatch.setattr(stored_rows, "_PART_FILES", 4)
    for number in range(10):
        write(tmp_path / f"{number}.parquet", rows_of(0, 5))
    source = open_parquet(tmp_path, target_block_bytes=1)
    assert [table.num_rows for table in read_joined(source, list(range(10)))] == [20, 20, 10]


@pytest.mark.skipif(decoder_library.LIBRARY is None, reason="Arrow reads text itself without the C decoder")
@pytest.mark.usefixtures("small_parts")
def test_a_disk_that_fails_is_reported_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        write(
            tmp_path / f"{number}.parquet",
            rows_of(0, 5).select(["text"]),
            compression="none",
            use_dictionary=False,
        )
    monkeypatch.setattr(mapped_files, "_MAX_FILES", 0)

    def fail(*arguments: Any) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(decoder_library, "preadv", fail)
    pipe = windrow.read_parquet(str(tmp_path), target_block_bytes=1).repeat(1)
    with pytest.raises(windrow.SourceError, match=r"0\.parquet, row group 0: (.|\n)*Input/output error"):
        list(pipe.options(executor="threads", progress=False).iter_batches())


@pytest.mark.parametrize("start", [-(2**40), 2**40, 2**49, 2**62, 2**63 - 50])
def test_chunks_that_lie_outside_of_their_file_are_left_out(start: int) -> None:
    chunk = Chunk(start, 100, 5, NUMBERS, 8, "SNAPPY", optional=False)
    assert chunk.moved(JoinedFiles.start(1), 10_000) is None
    inside = chunk._replace(start=9_900)
    table = chunk_table(
        [chunk, inside, inside._replace(start=9_901), inside._replace(size_bytes=-(2**63)), None]
    )
    moved = move_chunks(table, JoinedFiles.start(1), 10_000)
    assert moved[:, IS_STORED].tolist() == [0, 1, 0, 0, 0]
    assert moved[1, PAGES].tolist() == [JoinedFiles.start(1) + 9_900, 100]
    assert inside.moved(JoinedFiles.start(1), 10_000) == inside._replace(start=JoinedFiles.start(1) + 9_900)


@pytest.mark.parametrize("large", [False, True])
def test_a_chunk_behind_the_end_of_its_file_is_not_read_from_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    """Files of a part lie one behind another: an offset that is wrong by a file's size is right in the next one."""
    file = whole("plain")
    (start, _), content = file.chunks[2], file.content
    wrong = move_chunk(file, 0, 2, start + len(content))
    # the size of the footer, and with it that of the file, has changed
    wrong = move_chunk(file, 0, 2, start + len(wrong))
    for name, raw in (("0", wrong), ("1", content), ("2", wrong), ("3", content)):
        (tmp_path / f"{name}.parquet").write_bytes(raw)
    monkeypatch.setattr(row_group_format, "_LARGE_FILE_BYTES", 1 if large else 2**30)
    dataset = windrow.read_parquet(str(tmp_path), target_block_bytes=1)
    with pytest.raises(windrow.SourceError, match=r"0\.parquet(.|\n)*corrupt"):
        list(dataset.repeat(1).options(executor="threads", progress=False).iter_batches())


@pytest.mark.usefixtures("small_parts")
def test_files_are_open_from_their_first_part_to_their_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(6):
        write(tmp_path / f"{number}.parquet", rows_of(0, 60), row_group_size=20)
    source = open_parquet(tmp_path, target_block_bytes=1)
    monkeypatch.setattr(stored_rows, "PART_BYTES", 2_500)
    opened, closed = [], []
    close = BlockFile.close

    def note_open(files: Any, groups: Any, origin: str) -> BlockFile:
        opened.append(origin)
        return open_block(files, groups, origin)

    def note_close(block: BlockFile) -> None:
        closed.append(block.origin)
        close(block)

    monkeypatch.setattr(stored_rows, "open_block", note_open)
    monkeypatch.setattr(BlockFile, "close", note_close)
    joined = join_blocks(source.reader, source.addresses(range(18)))
    assert joined is not None
    most, parts = 0, 0
    for _ in source.reader.parts(joined):
        most, parts = max(most, len(opened) - len(closed)), parts + 1
    assert (len(opened), len(set(closed)), most) == (6, 6, 3)
    assert parts < 6
    # a loop that is left closes what is open
    unfinished = source.reader.parts(joined)
    next(unfinished)
    unfinished.close()  # type: ignore[attr-defined]
    assert len(opened) == len(closed) == 8


@pytest.mark.usefixtures("small_parts")
def test_a_file_that_changes_while_its_part_is_read_is_named(tmp_path: Path) -> None:
    for number in range(3):
        write(tmp_path / f"{number}.parquet", rows_of(0, 40), row_group_size=4)
    source = open_parquet(tmp_path, target_block_bytes=1)
    joined = join_blocks(source.reader, source.addresses(range(len(source.blocks.rows))))
    assert joined is not None
    parts = source.reader.parts(joined)
    next(parts)
    write(tmp_path / "0.parquet", rows_of(0, 39), row_group_size=4)
    with pytest.raises(
        windrow.SourceError, match=r"0\.parquet, row groups 0-9: the file has changed since it was listed"
    ):
        list(parts)


def test_a_corrupt_block_is_named_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_group_format, "_LARGE_FILE_BYTES", 1)
    for number in range(3):
        write(
            tmp_path / f"{number}.parquet",
            pa.table({"n": np.arange(900)}),
            row_group_size=300,
            use_dictionary=False,
            compression="none",
        )
    path = tmp_path / "1.parquet"
    start = pq.read_metadata(path).row_group(2).column(0).data_page_offset
    raw = bytearray(path.read_bytes())
    raw[start : start + 20] = b"\xff" * 20
    path.write_bytes(raw)
    pipe = windrow.read_parquet(str(tmp_path), target_block_bytes=1).repeat(1)
    with pytest.raises(windrow.SourceError, match=r"1\.parquet, row group 2: cannot be read"):
        list(pipe.options(executor="threads", progress=False).iter_batches())
