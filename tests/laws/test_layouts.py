"""The guarantees whatever the layout of the files: many small ones in a block, row groups that are cut, empty ones."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.io.files import open_parquet
from tests.laws.examples import examples
from tests.laws.reference import assign_as_lists, order_epoch
from windrow.dataset.dataset import Dataset
from windrow.dataset.logical_plan import LogicalPlan
from windrow.io.catalog.blocks import CutSizes
from windrow.io.catalog.file_source import FileSource
from windrow.io.parquet.block_reader import ParquetFormat
from windrow.shuffle.order.epoch_plan import WindowCut

pytestmark = pytest.mark.usefixtures("small_runs", "leaves_no_thread")

EPOCHS = 2
ROW_BYTES = 64


@dataclass(frozen=True)
class Layout:
    """Files by the rows of their row groups, and how blocks are made of these; bytes are encoded ones."""

    files: tuple[tuple[int, ...], ...]
    block_bytes: int | None
    # of pieces of row groups; 0: none is cut
    piece_bytes: int

    def write(self, folder: Path) -> FileSource:
        first = 0
        for number, groups in enumerate(self.files):
            path, schema = folder / f"{number:03}.parquet", make_table(0, 0).schema
            # pages of a few rows
            with pq.ParquetWriter(path, schema, data_page_size=32, write_batch_size=4) as writer:
                for rows in groups:
                    writer.write_table(make_table(first, rows))
                    first += rows
        sizes = CutSizes(
            min_bytes=2 * self.piece_bytes,
            max_bytes=2 * self.piece_bytes,
            min_piece_bytes=self.piece_bytes,
            batch_rows=1,
            page_rows=4,
        )
        source = open_parquet(folder)
        return replace(
            source,
            target_block_bytes=self.block_bytes,
            format=ParquetFormat(cut_sizes=sizes if self.piece_bytes else None),
        )


def make_table(first: int, rows: int) -> pa.Table:
    numbers = np.arange(first, first + rows)
    texts = [None if n % 5 == 0 else f"text {n}" for n in numbers.tolist()]
    lists = [None if n % 7 == 0 else [n] * (n % 4) for n in numbers.tolist()]
    return pa.table(
        {
            "n": pa.array(numbers, pa.int64()),
            "text": pa.array(texts, pa.string()),
            "list": pa.array(lists, pa.list_(pa.int64())),
            "lists": pa.array([[each] for each in lists], pa.list_(pa.list_(pa.int32()))),
        }
    )


def check_rows(rows: list[dict[str, Any]]) -> list[int]:
    """The numbers of the rows, each of which must have the values of its number."""
    found = [row["n"] for row in rows]
    for n, row in zip(found, rows, strict=True):
        values = None if n % 7 == 0 else [n] * (n % 4)
        assert row == {"n": n, "text": None if n % 5 == 0 else f"text {n}", "list": values, "lists": [values]}
    return found


def read_rows(epoch: Any, batch_rows: int) -> Iterator[list[dict[str, Any]]]:
    for batch in epoch.iter_batches(batch_rows, batch_format="pyarrow"):
        yield batch.to_pylist()


LAYOUTS = st.builds(
    Layout,
    st.lists(st.lists(st.sampled_from([0, 1, 2, 9, 40]), max_size=4).map(tuple), min_size=1, max_size=6).map(
        tuple
    ),
    st.sampled_from([None, 1, 8 * ROW_BYTES, 2**20]),
    st.sampled_from([0, 2 * ROW_BYTES, 12 * ROW_BYTES]),
)


@examples(25)
@given(
    layout=LAYOUTS,
    window_blocks=st.sampled_from([1, 3, 99]),
    seed=st.integers(0, 2**16),
    shards=st.integers(1, 3),
    other_shards=st.integers(1, 3),
    batch_rows=st.integers(1, 9),
    steps=st.integers(0, 12),
)
def test_guarantees_on_any_layout(
    layout: Layout,
    window_blocks: int,
    seed: int,
    shards: int,
    other_shards: int,
    batch_rows: int,
    steps: int,
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source = layout.write(Path(folder))
        pipe = (
            Dataset(LogicalPlan(source))
            .window(blocks_per_window=window_blocks)
            .repeat(EPOCHS)
            .random_shuffle_each_window(seed=seed)
            .options(executor="threads")
        )
        assert_delivers(pipe, source, window_blocks, seed, shards, batch_rows)
        assert_resumes(pipe, source, window_blocks, seed, (shards, other_shards), batch_rows, steps)


def order_rows(source: FileSource, window_blocks: int, seed: int, epoch: int) -> list[int]:
    ends = np.cumsum(source.blocks.rows)
    values = [range(int(end - rows), int(end)) for rows, end in zip(source.blocks.rows, ends, strict=True)]
    cut = WindowCut(blocks_per_window=window_blocks)
    return order_epoch(source.blocks, values, cut=cut, seed=seed, epoch=epoch)


def assert_delivers(
    pipe: Any, source: FileSource, window_blocks: int, seed: int, shards: int, batch_rows: int
) -> None:
    opened = pipe.split(shards, equal=False)
    for epoch, iterators in enumerate(zip(*(shard.iter_epochs() for shard in opened), strict=True)):
        order = order_rows(source, window_blocks, seed, epoch)
        assert sorted(order) == list(range(int(source.manifest.rows.sum())))
        assigned = assign_as_lists(len(order), shards, batch_rows, False)
        for iterator, batches in zip(iterators, assigned.batches, strict=True):
            found = [check_rows(rows) for rows in read_rows(iterator, batch_rows)]
            assert found == [[order[row] for row in batch] for batch in batches]
    for shard in opened:
        shard.close()


def assert_resumes(
    pipe: Any,
    source: FileSource,
    window_blocks: int,
    seed: int,
    shards: tuple[int, int],
    batch_rows: int,
    steps: int,
) -> None:
    """Read some steps with some shards and the rest of the epoch with others: each row comes once."""
    order = order_rows(source, window_blocks, seed, 0)
    before, after = shards
    steps = min(steps, len(order) // (before * batch_rows))
    found: list[int] = []
    opened = pipe.split(before, equal=False)
    for shard in opened:
        batches = read_rows(next(iter(shard.iter_epochs())), batch_rows)
        for _ in range(steps):
            found += check_rows(next(batches))
    assert sorted(found) == sorted(order[: len(found)])
    state = opened[0].state_dict()
    for shard in opened:
        shard.close()
    opened = pipe.split(after, equal=False, state_dict=state)
    rest = []
    for shard in opened:
        for rows in read_rows(next(iter(shard.iter_epochs())), batch_rows):
            rest += check_rows(rows)
        shard.close()
    expected = order[len(found) :] if len(found) < len(order) else order_rows(source, window_blocks, seed, 1)
    assert sorted(rest) == sorted(expected)


ON_RAY = {
    "small files in a block": Layout(((9,), (1,), (), (0,), (40,), (2,)), 2**20, 0),
    "cut beside small files": Layout(((1,), (2, 1), (40,), (1,), (1,), (40,)), 20 * ROW_BYTES, 8 * ROW_BYTES),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if "cut" in name else pytest.mark.nightly) for name in ON_RAY]
)
def test_guarantees_on_ray(name: str, tmp_path: Path, ray_local: Any) -> None:
    source = ON_RAY[name].write(tmp_path)
    if "cut" in name:
        assert source.describe().count("cut") == 1
        files = source.blocks.files
        assert files is not None
        assert (files > 1).any()
    else:
        assert len(source.blocks.rows) == 1
    pipe = (
        Dataset(LogicalPlan(source))
        .window(blocks_per_window=3)
        .repeat(EPOCHS)
        .random_shuffle_each_window(seed=5)
        .options(executor="ray")
    )
    assert_delivers(pipe, source, 3, 5, 1, 7)
    assert_resumes(pipe, source, 3, 5, (1, 1), 7, 2)
