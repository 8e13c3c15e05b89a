"""The parts, shape and tasks of a program equal those of a model in plain Python."""

from __future__ import annotations

import gc
import pickle
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, pairwise
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from windrow.core.source import BlockAddress, BlockPart, BlockTable, SourceIdentity
from windrow.pipeline.plan.epoch_shape import EpochCounts, Part, Stage
from windrow.pipeline.plan.held_windows import largest_window
from windrow.pipeline.plan.job import Job, Options
from windrow.pipeline.plan.program import TASK_BYTES, UNKNOWN_ROWS, Program
from windrow.pipeline.tasks.map_batches import MapBatches
from windrow.pipeline.tasks.task import Task, Work
from windrow.shuffle.order.batching import Batching
from windrow.shuffle.order.epoch_plan import WindowCut
from windrow.shuffle.order.runs import WindowRuns

Rows = NDArray[np.int64]
MIB = 2**20
READ, PLACE = Stage("read", needs_order=False), Stage("place", needs_order=True)


@dataclass(frozen=True)
class UnreadReader:
    """A reader that fails on every read."""

    schema: pa.Schema
    decodes_columns: bool
    joins_blocks: bool = False

    def read(self, address: BlockAddress) -> pa.Table:
        raise AssertionError("nothing is read")

    def parts(self, address: BlockAddress) -> Iterator[BlockPart]:
        raise AssertionError("nothing is read")


@dataclass(frozen=True)
class StatedSource:
    """A source without data: (rows, bytes) of each block, and the ratio by which they pack."""

    stated: tuple[tuple[int, int], ...]
    rows_known: bool = True
    bytes_exact: bool = True
    packs_to: int = 1
    decodes_columns: bool = False
    joins_blocks: bool = False

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([("x", pa.int64())])

    @property
    def blocks(self) -> BlockTable:
        rows, sizes = (np.array([block[i] for block in self.stated], np.int64) for i in (0, 1))
        packed = sizes // self.packs_to if self.packs_to > 1 else None
        return BlockTable(rows, sizes, sizes, self.rows_known, self.bytes_exact, packed_bytes=packed)

    @property
    def reader(self) -> Any:
        return UnreadReader(self.schema, decodes_columns=self.decodes_columns, joins_blocks=self.joins_blocks)

    @property
    def fingerprint(self) -> str:
        return "stated"

    def identity(self, files: int | None = None) -> SourceIdentity:
        raise AssertionError("no state is made")

    @property
    def contents(self) -> str:
        return "stated"

    @property
    def null_counts(self) -> dict[str, int | None]:
        return {"x": 0}

    def addresses(self, blocks: Sequence[int]) -> tuple[BlockAddress, ...]:
        return tuple(BlockAddress(f"block {block}", block) for block in blocks)

    def describe(self) -> str:
        return "stated"


def make_program(stated: Sequence[tuple[int, int]], cut: WindowCut, **options: Any) -> Program:
    names = ("rows_known", "bytes_exact", "packs_to", "decodes_columns", "joins_blocks")
    told = {name: options.pop(name) for name in names if name in options}
    source = StatedSource(tuple(stated), **told)
    return Program(Job(source, cut, 2, **options), 2, False, (0, 1))


@given(mib=st.lists(st.integers(0, 24), min_size=1, max_size=12))
def test_blocks_that_are_read_as_one_fit_what_a_task_reads_at_a_time(mib: list[int]) -> None:
    program = make_program([(1, each * MIB) for each in mib], WindowCut(), joins_blocks=True)
    joins = program._find_joins(range(len(mib)))
    if not joins:
        assert all(one + other > 16 for one, other in pairwise(mib))
        return
    groups = [mib[first:stop] for first, stop in pairwise((0, *joins))]
    assert list(chain(*groups)) == mib
    assert all(groups)
    assert all(len(group) == 1 or sum(group) <= 16 for group in groups)
    assert all(sum(group) + after[0] > 16 for group, after in pairwise(groups))


CHANGES = [{"options": Options(cache="memory")}, {"before": (MapBatches(lambda batch: batch),)}, {}]


@pytest.mark.parametrize("change", CHANGES)
def test_blocks_are_read_one_by_one_where_they_are_needed_whole(change: dict[str, Any]) -> None:
    stated = [(1, MIB)] * 4
    program = make_program(stated, WindowCut(), joins_blocks=True, **change)
    assert program._find_joins(range(4)) == (() if change else (4,))
    assert make_program(stated, WindowCut())._find_joins(range(4)) == ()
    task = program.task(Work(0, 0, 0, 0, 0), READ, program.stored_rows)
    assert task.joins == ()


def model_parts(program: Program, epoch: int, window: int) -> list[list[int]]:
    """A part ends where the bytes before a block pass another multiple of `TASK_BYTES`."""
    sizes = program.job.source.blocks.memory_bytes
    numbered, before = [], 0
    for block in program.plan(epoch).window_blocks(window).tolist():
        numbered.append((before // TASK_BYTES, block))
        before += int(sizes[block])
    return [[block for _, block in part] for _, part in groupby(numbered, lambda pair: pair[0])]


def make_task(program: Program, work: Work, stage: Stage, rows: Rows) -> Task:
    places = None
    if stage.needs_order:
        counts = EpochCounts(program.shape(work.epoch, rows))
        assignment = program.assignment(Batching(10))
        places = program.places(
            work, counts, rows, assignment=assignment, destinations=((0,), (1,)), slices=1
        )
    return program.task(work, stage, rows, places)


def assert_places(program: Program, epoch: int, window: int, rows: Rows) -> None:
    """Check that a block's offset is the number of rows before it in its window."""
    before = 0
    total = int(rows[program.plan(epoch).window_blocks(window)].sum())
    for number, part in enumerate(model_parts(program, epoch, window)):
        task = make_task(program, Work(epoch, window, number, 0, 0), PLACE, rows)
        offsets = [before + int(rows[part[:at]].sum()) for at in range(len(part))]
        before += int(rows[part].sum())
        assert [address.locator for address in task.addresses] == part
        assert task.rows == tuple(rows[part].tolist())
        assert task.ordering is not None
        assert task.ordering.offsets == tuple(offsets)
        assert task.ordering.order.rows == total
        assert task.ordering.order.first_row == cast("WindowRuns", task.ordering.layouts[0]).first_row
        if total and task.ordering.order.permutation is not None:
            assert task.ordering.order.permutation.size == total


blocks = st.lists(
    st.tuples(st.integers(0, 50), st.sampled_from([0, 1, 5 * MIB, 16 * MIB, 32 * MIB, 33 * MIB, 90 * MIB])),
    max_size=25,
)
cuts = st.one_of(
    st.just(WindowCut()),
    st.builds(lambda count: WindowCut(blocks_per_window=count), st.integers(1, 9)),
    # with small windows, some after a large block have no blocks
    st.builds(lambda size: WindowCut(bytes_per_window=size * MIB), st.sampled_from([8, 40, 100, 1000])),
)
seeds = st.sampled_from([None, 0, 7])


@settings(deadline=None)
@given(stated=blocks, cut=cuts, seed=seeds)
def test_parts_shape_and_tasks_equal_the_model(
    stated: list[tuple[int, int]], cut: WindowCut, seed: int | None
) -> None:
    program = make_program(stated, cut, seed=seed)
    rows, held = program.stored_rows, program.estimate.held_bytes
    for epoch in (0, 1):
        windows = range(program.plan(epoch).windows)
        expected = [model_parts(program, epoch, window) for window in windows]
        assert [[part.tolist() for part in program.parts(epoch, w)] for w in windows] == expected
        assert [len(program.parts(epoch, window)) for window in windows] == list(map(len, expected))
        shape = program.shape(epoch, rows)
        assert shape.windows == tuple(
            tuple(Part(sum(rows[p].tolist()), sum(held[p].tolist())) for p in parts) for parts in expected
        )
        assert [stage.name for stage in shape.stages] == ["map"]
        for window in windows:
            assert_places(program, epoch, window, rows)


@settings(deadline=None)
@given(stated=blocks, cut=cuts, seed=seeds, data=st.data())
def test_row_counts_that_become_known_while_reading(
    stated: list[tuple[int, int]], cut: WindowCut, seed: int | None, data: st.DataObject
) -> None:
    program = make_program(stated, cut, seed=seed, rows_known=False)
    rows = program.stored_rows.copy()
    assert (rows == UNKNOWN_ROWS).all()
    windows = [model_parts(program, 0, window) for window in range(program.plan(0).windows)]
    works = [(window, part) for window, parts in enumerate(windows) for part in range(len(parts))]
    for window, number in data.draw(st.permutations(works)):
        part = windows[window][number]
        shape = program.shape(0, rows)
        for w, parts in enumerate(windows):
            unknown = [(rows[blocks] < 0).any() for blocks in parts]
            assert [found.rows is None for found in shape.windows[w]] == unknown
        assert [stage.name for stage in shape.stages] == ["read", "place"]
        task = make_task(program, Work(0, window, number, 0, 0), READ, rows)
        assert task.ordering is None
        assert task.rows == (None,) * len(part)
        rows[part] = data.draw(st.lists(st.integers(0, 9), min_size=len(part), max_size=len(part)))
    for window in range(len(windows)):
        assert_places(program, 0, window, rows)
    # another job with the same program can have other counts, in an array of its own
    other = rows + 1
    for window in range(len(windows)):
        assert_places(program, 0, window, other)
        assert_places(program, 0, window, rows)


@given(stated=blocks, cut=cuts)
def test_largest_window(stated: list[tuple[int, int]], cut: WindowCut) -> None:
    program = make_program(stated, cut)
    windows = [program.plan(0).window_blocks(window) for window in range(program.plan(0).windows)]
    expected = max((sum(program.estimate.held_bytes[window].tolist()) for window in windows), default=0)
    assert largest_window(program, program.estimate.held_bytes) == expected


def test_sums_are_cached_by_array() -> None:
    program = make_program([(3, MIB)] * 8, WindowCut(), seed=1)
    plan, rows = program.parts(0, 0), program.stored_rows
    sums = plan.rows_before(rows)
    assert sums.tolist() == list(range(0, 25, 3))
    assert program.parts(0, 0).rows_before(rows) is sums
    assert plan.rows_before(rows * 2).tolist() == list(range(0, 49, 6))


def test_summing_unknown_rows_is_an_error() -> None:
    program = make_program([(3, MIB)] * 2, WindowCut(), rows_known=False)
    with pytest.raises(AssertionError, match=r"counted before they are placed"):
        program.parts(0, 0).rows_before(program.stored_rows)


def test_part_out_of_range_is_an_index_error() -> None:
    plan = make_program([(3, 40 * MIB)] * 2, WindowCut()).parts(0, 0)
    assert [plan[part].tolist() for part in (0, 1)] == [[0], [1]]
    for part in (-1, 2):
        with pytest.raises(IndexError, match=rf"part {part} of 2"):
            plan[part]


def test_cached_plans_are_bounded() -> None:
    program = make_program([(3, MIB)] * 100, WindowCut(blocks_per_window=1), seed=1)
    plans = [weakref.ref(program.parts(epoch, window)) for epoch in range(6) for window in range(100)]
    epochs = [weakref.ref(program.plan(epoch)) for epoch in range(6)]
    gc.collect()
    assert 1 < sum(plan() is not None for plan in plans) < 20
    assert 1 < sum(epoch() is not None for epoch in epochs) < 6


def test_program_is_freed_without_garbage_collection() -> None:
    program = make_program([(3, MIB)] * 4, WindowCut(), seed=1)
    program.shape(0, program.stored_rows)
    program.parts(0, 0)
    freed = weakref.ref(program.parts(0, 0))
    gc.disable()
    try:
        del program
        assert freed() is None
    finally:
        gc.enable()


def test_program_is_pickled_without_its_plans() -> None:
    program = make_program([(3, MIB)] * 1000, WindowCut(blocks_per_window=7), seed=1)
    size = len(pickle.dumps(program))
    program.shape(0, program.stored_rows)
    again = pickle.loads(pickle.dumps(program))
    assert len(pickle.dumps(program)) == size
    for window, (first, stop) in enumerate(pairwise(program.plan(1).starts.tolist())):
        found = np.concatenate(list(again.parts(1, window)))
        assert found.tolist() == program.plan(1).blocks[first:stop].tolist()


def test_output_bytes_are_packed_only_for_known_untransformed_rows() -> None:
    stated = [(1_000, 64 * MIB), (1_000, 32 * MIB)]
    plain, packed = (
        make_program(stated, WindowCut(), packs_to=times).estimate.output_bytes for times in (1, 4)
    )
    places = 1_000 * (plain[0] - 64 * MIB) / 1_000
    assert (packed - places).tolist() == [16 * MIB, 8 * MIB]
    changed = MapBatches(lambda batch: batch)
    counted, mapped = (
        make_program(stated, WindowCut(), packs_to=4, **options).estimate.output_bytes
        for options in ({"rows_known": False}, {"before": (changed,)})
    )
    assert counted.tolist() == mapped.tolist() == plain.tolist()
