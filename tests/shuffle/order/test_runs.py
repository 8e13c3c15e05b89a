"""The runs of windows: streams rebuilt from (run, place) are those of the shard assignment."""

from __future__ import annotations

import pickle
from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.laws.reference import assign_as_lists
from tests.shuffle.examples import by_day
from tests.shuffle.kernels.test_native import needs_library, without_library
from tests.shuffle.order.test_shard_assignment import ASSIGNMENTS, reference
from windrow.shuffle.order.runs import Destinations, WindowRuns
from windrow.shuffle.order.shard_assignment import ShardAssignment


@st.composite
def epochs(draw: st.DrawFn) -> tuple[ShardAssignment, int, list[int], list[tuple[int, ...]]]:
    """Draw an assignment, its total, the boundaries of its windows, and the destinations."""
    assignment = draw(ASSIGNMENTS)
    total = draw(st.integers(0, 90))
    cuts = sorted(draw(st.lists(st.integers(0, total), max_size=4)))
    where = draw(st.lists(st.integers(0, 2), min_size=assignment.shards, max_size=assignment.shards))
    groups = [tuple(t for t in range(assignment.shards) if where[t] == node) for node in range(3)]
    return assignment, total, [0, *cuts, total], [group for group in groups if group]


def rebuild(layout: WindowRuns, rows: np.ndarray, streams: list[dict[int, int]]) -> None:
    """Place a window's rows according to its layout, as map tasks and shards do."""
    ends = np.flatnonzero(np.arange(1, len(rows) + 1) % 7 == 0)  # tasks of seven rows
    entries: list[tuple[int, int, int]] = []
    for part in np.split(rows, ends):
        sources, runs, places = Destinations([layout]).assign(part.copy())
        assert places.dtype == np.uint32
        assert runs.dtype in (np.uint16, np.uint32)
        of = part if sources is None else part[sources]
        entries += zip(runs.tolist(), places.tolist(), of.tolist(), strict=True)
    last = int(layout.slice_starts[-1])
    held: dict[int, dict[int, int]] = {}
    for run_id, place, row in entries:
        if run_id < last:
            assert place not in held.setdefault(run_id, {})
            held[run_id][place] = row
    seen = set()
    for shard in layout.shards:
        for run in (*layout.runs(shard), *layout.padding_runs(shard)):
            run_id = int(layout.slice_starts[run.slice]) + run.index
            assert run_id < layout.slice_starts[run.slice + 1]
            seen.add(run_id)
            assert sorted(held[run_id]) == list(range(run.rows))
            for place, row in held[run_id].items():
                assert run.place + place not in streams[shard]
                streams[shard][run.place + place] = row
    assert seen == set(held)


@by_day(30)
@given(epochs(), st.integers(1, 3), st.integers(1, 8), st.booleans(), st.randoms(use_true_random=False))
@example((ShardAssignment(5, 3, "pad"), 2, [0, 1, 2], [(0, 3), (1, 2, 4)]), 1, 8, False, None)
@example((ShardAssignment(4, 2, "pad", workers=2), 11, [0, 9, 11], [(0, 3), (1, 2)]), 1, 2, True, None)
@example((ShardAssignment(2, 1, True), 3, [0, 0, 3], [(1,)]), 2, 3, True, None)
def test_streams(
    epoch: tuple[ShardAssignment, int, list[int], list[tuple[int, ...]]],
    batches_per_run: int,
    slices: int,
    counted: bool,
    random: Any,
) -> None:
    assignment, total, borders, destinations = epoch
    expected = reference(assignment, total)
    full_rows = assignment.start_row + assignment.full_steps(total) * assignment.step_rows
    streams: list[dict[int, int]] = [{} for _ in range(assignment.shards)]
    for first, stop in pairwise(borders):
        order = list(range(first, stop))
        if random is not None:
            random.shuffle(order)
        for shards in destinations:
            layout = WindowRuns(
                assignment=assignment,
                first_row=first,
                stop_row=stop,
                total=None if not counted and stop <= full_rows else total,
                shards=shards,
                run_rows=batches_per_run * assignment.batch_rows,
                slices=slices,
            )
            assert len(layout.slice_starts) == slices + 1
            rebuild(pickle.loads(pickle.dumps(layout)), np.array(order, dtype=np.int64), streams)
    for shards in destinations:
        for shard in shards:
            stream = streams[shard]
            assert sorted(stream) == list(range(len(stream)))
            assert [stream[place] for place in range(len(stream))] == expected.stream(shard)


@by_day(30)
@given(epochs(), st.integers(1, 3), st.integers(1, 8))
def test_runs_are_whole_batches_in_order_of_slices(
    epoch: tuple[ShardAssignment, int, list[int], list[tuple[int, ...]]], batches_per_run: int, slices: int
) -> None:
    assignment, total, borders, destinations = epoch
    run_rows = batches_per_run * assignment.batch_rows
    for first, stop in pairwise(borders):
        for shards in destinations:
            layout = WindowRuns(assignment, first, stop, total, shards, run_rows, slices)
            for shard in shards:
                runs = layout.runs(shard)
                assert [run.slice for run in runs] == sorted(run.slice for run in runs)
                assert all(run.rows == run_rows for run in runs[1:-1])
                assert all(run.place % run_rows == 0 for run in runs[1:])
                assert all(run.rows > 0 for run in runs)


@pytest.mark.parametrize("compiled", [pytest.param(True, marks=needs_library), False])
@by_day(30)
@given(epochs(), st.integers(1, 3), st.integers(1, 8), st.booleans())
def test_several_destinations_at_once_give_the_entries_of_each_alone(
    compiled: bool,
    epoch: tuple[ShardAssignment, int, list[int], list[tuple[int, ...]]],
    batches_per_run: int,
    slices: int,
    counted: bool,
) -> None:
    assignment, total, borders, destinations = epoch
    full_rows = assignment.start_row + assignment.full_steps(total) * assignment.step_rows
    with nullcontext() if compiled else without_library():
        for first, stop in pairwise(borders):
            known = None if not counted and stop <= full_rows else total
            rest = first, stop, known
            layouts = [
                WindowRuns(assignment, *rest, shards, batches_per_run * assignment.batch_rows, slices)
                for shards in destinations
            ]
            rows = np.arange(first, stop)[::-1]
            together = Destinations(layouts)
            expected, end = set[tuple[int, int, int]](), 0
            for layout in layouts:
                with without_library():
                    entries = assigned(Destinations([layout]), rows)
                expected |= {(source, run + end, place) for source, run, place in entries}
                end += int(layout.slice_starts[-1])
            assert together.slice_starts[-1] == end
            assert assigned(together, rows) == expected


@needs_library
@pytest.mark.parametrize("stop", [2**31 + 500, 2**32 - 1, 2**32, 2**33 + 1])
@pytest.mark.parametrize("batch_rows", [1, 2**16 + 1, 2**31, 2**32 - 1, 2**33])
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize(
    "beyond", [None, 7, *(pytest.param(rows, marks=pytest.mark.nightly) for rows in (0, 2**32 + 5))]
)
def test_kernel_and_numpy_divide_large_integers_alike(
    stop: int, batch_rows: int, shards: int, beyond: int | None
) -> None:
    assignment, first = ShardAssignment(shards, batch_rows), stop - 1000
    total = None if beyond is None else stop + beyond
    if total is None and stop % assignment.step_rows < 1000:
        total = stop
    layouts = [
        WindowRuns(assignment, first, stop, total, (shard,), batch_rows * (1 + (batch_rows < 2**16) * 6), 2)
        for shard in range(shards)
    ]
    rows = np.arange(first, stop)
    compiled = assigned(Destinations(layouts), rows)
    with without_library():
        assert assigned(Destinations(layouts), rows) == compiled
    assert len(compiled) == len(rows)


@needs_library
@pytest.mark.parametrize("runs", [2**16 - 2, 2**16 - 1, 2**16, 2**16 + 1])
def test_ids_of_several_destinations_can_need_wider_integers(runs: int) -> None:
    assignment, cut = ShardAssignment(2, 1), runs // 2 * 2
    layouts = [WindowRuns(assignment, 0, cut, cut, (shard,), 1, 1) for shard in (0, 1)]
    destinations = Destinations(layouts)
    _, ids, _ = destinations.assign(np.arange(cut))
    assert ids.dtype == (np.uint16 if cut < 2**16 else np.uint32)
    assert sorted(ids.tolist()) == list(range(cut))
    # rows of a shard that is not in the layout are left out
    _, ids, _ = Destinations(layouts[:1]).assign(np.arange(cut))
    assert np.unique(ids).tolist() == list(range(cut // 2 + 1))


def assigned(destinations: Destinations, rows: np.ndarray) -> set[tuple[int, int, int]]:
    """(source, run, place) of all entries but those left out."""
    sources, runs, places = destinations.assign(rows)
    of = range(len(rows)) if sources is None else sources.tolist()
    entries = list(zip(of, runs.tolist(), places.tolist(), strict=True))
    kept = [entry for entry in entries if entry[1] < destinations.slice_starts[-1]]
    assert len(kept) == len(set(kept))
    return set(kept)


def test_many_runs_need_wide_ids() -> None:
    layout = WindowRuns(ShardAssignment(2, 1), 0, 70_000, 70_000, (0, 1), 1, 3)
    _, runs, places = Destinations([layout]).assign(np.arange(70_000))
    assert runs.dtype == np.uint32
    assert sorted(runs.tolist()) == list(range(70_000))
    assert not places.any()


@pytest.mark.parametrize("first", [2**31 - 40, 2**32 - 40, 2**40 + 3])
def test_windows_far_into_an_epoch(first: int) -> None:
    total = first + 100
    assignment = ShardAssignment(3, 4)
    layout = WindowRuns(assignment, first, total, total, (0, 1, 2), 8, 2)
    streams: list[dict[int, int]] = [{}, {}, {}]
    rebuild(layout, np.arange(first, total)[::-1], streams)
    for shard in range(3):
        for place, row in streams[shard].items():
            assert assignment.rows_before(row, shard, total) == place
    assert sum(map(len, streams)) == 100


@pytest.mark.parametrize("batch_rows", [2**31, 2**32, 2**40])
@pytest.mark.parametrize("shards", [1, 3])
def test_batches_far_larger_than_the_epoch(batch_rows: int, shards: int) -> None:
    layout = WindowRuns(ShardAssignment(shards, batch_rows), 0, 10, 10, tuple(range(shards)), batch_rows, 2)
    streams: list[dict[int, int]] = [{} for _ in range(shards)]
    rebuild(layout, np.arange(10)[::-1], streams)
    expected = assign_as_lists(10, shards, 11, False)
    assert [sorted(stream.values()) for stream in streams] == [expected.stream(t) for t in range(shards)]
