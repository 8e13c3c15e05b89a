"""The runs of a mixture's rounds: each row has the run and the place that it would have in its round alone."""

from __future__ import annotations

import pickle
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from tests.shuffle.examples import by_day
from tests.shuffle.kernels.test_native import without_library
from tests.shuffle.order.test_runs import assigned
from tests.shuffle.order.test_shard_assignment import ASSIGNMENTS, reference
from windrow.shuffle.order.keys import derive_key
from windrow.shuffle.order.permutation import Permutation
from windrow.shuffle.order.round_runs import (
    MAX_SLICES,
    RoundDestinations,
    RoundRuns,
    SourceStretch,
    count_slices,
    find_slice,
    scatter_window,
)
from windrow.shuffle.order.runs import Destinations, WindowRuns
from windrow.shuffle.order.shard_assignment import ShardAssignment
from windrow.shuffle.order.share_sequence import ShareSequence
from windrow.shuffle.order.step_runs import find_destinations

KEY = bytes(range(32))


def _lay_out(
    assignment: ShardAssignment,
    leg: tuple[int, int],
    round_rows: int,
    rounds: tuple[int, int],
    destinations: list[tuple[int, ...]],
    batches_per_run: int,
) -> list[RoundRuns]:
    first, stop = leg
    run_rows = batches_per_run * assignment.batch_rows
    return [
        RoundRuns(
            WindowRuns(assignment, first, stop, stop, shards, run_rows, 1),
            round_rows=round_rows,
            first_round=rounds[0],
            stop_round=rounds[1],
            first_row=first,
            stop_row=stop,
            most_slices=MAX_SLICES,
        )
        for shards in destinations
    ]


@st.composite
def windows(draw: st.DrawFn) -> list[RoundRuns]:
    """Draw the layouts of a source's window, whose leg starts where the assignment does or some steps later."""
    return _draw_windows(draw, 2)


@st.composite
def distant_windows(draw: st.DrawFn) -> list[RoundRuns]:
    """The same, also many steps later, where rows of the assignment take more than 32 bits."""
    return _draw_windows(draw, draw(st.sampled_from([2, 2**33])))


def _draw_windows(draw: st.DrawFn, most_steps: int) -> list[RoundRuns]:
    assignment = draw(ASSIGNMENTS)
    first = assignment.start_row + draw(st.integers(0, most_steps)) * assignment.step_rows
    leg = first, first + draw(st.integers(1, 90))
    round_rows = draw(st.integers(1, 40))
    begin = draw(st.integers(leg[0] // round_rows, (leg[1] - 1) // round_rows))
    end = draw(st.integers(begin, (leg[1] - 1) // round_rows)) + 1
    where = draw(st.lists(st.integers(0, 2), min_size=assignment.shards, max_size=assignment.shards))
    groups = [tuple(t for t in range(assignment.shards) if where[t] == node) for node in range(3)]
    groups = draw(st.permutations([group for group in groups if group]))
    return _lay_out(assignment, leg, round_rows, (begin, end), groups, draw(st.integers(1, 3)))


def rows_of(layout: RoundRuns) -> list[int]:
    """The mixture's rows in the rounds of a window."""
    first = max(layout.first_row, layout.first_round * layout.round_rows)
    return list(range(first, min(layout.stop_row, layout.stop_round * layout.round_rows)))


PADDED = _lay_out(ShardAssignment(5, 3, "pad"), (0, 17), 4, (0, 5), [(0, 3), (1, 2, 4)], 1)
RESUMED = _lay_out(ShardAssignment(3, 2, "pad", start_row=5), (17, 40), 7, (2, 6), [(2,), (0, 1)], 2)


@by_day(60)
@given(distant_windows(), st.randoms(use_true_random=False), st.integers(0, 100))
@example(PADDED, None, 0)
@example(RESUMED, None, 50)
def test_every_round_has_the_runs_that_it_has_alone(
    layouts: list[RoundRuns], random: Any, left_out: int
) -> None:
    rows = rows_of(layouts[0])
    if random is not None:
        # a window of a source has some of the rows, in any order
        random.shuffle(rows)
        rows = rows[: max(1, len(rows) * (100 - left_out) // 100)]
    given_rows = np.array([*rows, -1], np.int64)
    together = RoundDestinations(pickle.loads(pickle.dumps(layouts)))
    expected, end = set[tuple[int, int, int]](), 0
    for layout in layouts:
        for number in range(layout.first_round, layout.stop_round):
            alone = layout.layout(number)
            (inside,) = np.nonzero((given_rows >= alone.first_row) & (given_rows < alone.stop_row))
            entries = assigned(Destinations([alone]), given_rows[inside])
            first, count = layout.runs_of(number)
            assert count == alone.slice_starts[-1]
            first += int(layout.slice_starts[layout.slice_of(number)])
            expected |= {(int(inside[row]), end + first + run, place) for row, run, place in entries}
        end += int(layout.slice_starts[-1])
    assert together.slice_starts[-1] == end
    assert assigned(together, given_rows) == expected  # type: ignore[arg-type]
    with without_library():
        assert assigned(together, given_rows) == expected  # type: ignore[arg-type]


@by_day(60)
@given(windows())
@example(PADDED)
@example(RESUMED)
def test_streams_of_all_rounds_are_those_of_the_assignment(layouts: list[RoundRuns]) -> None:
    whole = layouts[0]
    begin, end = whole.first_row // whole.round_rows, -(-whole.stop_row // whole.round_rows)
    layouts = [replace(layout, first_round=begin, stop_round=end) for layout in layouts]
    assignment, stop = whole.round.assignment, whole.stop_row
    entries = assigned(RoundDestinations(layouts), np.arange(whole.first_row, stop))  # type: ignore[arg-type]
    found = {(run, place): whole.first_row + row for row, run, place in entries}
    expected, ends = reference(assignment, stop), 0
    for layout in layouts:
        for shard in layout.shards:
            stream: dict[int, int] = {}
            for number in range(begin, end):
                alone, (first, _) = layout.layout(number), layout.runs_of(number)
                first += int(layout.slice_starts[layout.slice_of(number)]) + ends
                for run in (*alone.runs(shard), *alone.padding_runs(shard)):
                    run_id = first + int(alone.slice_starts[run.slice]) + run.index
                    for place in range(run.rows):
                        assert run.place + place not in stream
                        stream[run.place + place] = found.pop((run_id, place))
            before = assignment.rows_before(whole.first_row, shard, stop)
            assert [stream[place] for place in sorted(stream)] == expected.stream(shard)[before:]
        ends += int(layout.slice_starts[-1])
    assert not found


@by_day(30)
@given(st.integers(0, 50), st.integers(1, 60), st.integers(1, MAX_SLICES))
def test_slices_hold_rounds_in_order(first: int, rounds: int, most: int) -> None:
    stop = first + rounds
    slices = [find_slice(number, first, stop, most) for number in range(first, stop)]
    assert slices == sorted(slices)
    assert set(slices) == set(range(count_slices(first, stop, most)))
    assert len(set(slices)) == min(most, rounds)
    layout = _lay_out(ShardAssignment(2, 3), (0, stop * 5), 5, (first, stop), [(0, 1)], 1)[0]
    layout = replace(layout, most_slices=most)
    for number in range(first, stop):
        at, count = layout.runs_of(number)
        begin, end = layout.slice_starts[layout.slice_of(number) : layout.slice_of(number) + 2].tolist()
        assert 0 <= at <= at + count <= end - begin


def test_rounds_far_into_a_mixture_and_without_rows() -> None:
    first = 2**32 - 50
    layouts = _lay_out(
        ShardAssignment(3, 4), (first, first + 100), 30, (first // 30, first // 30 + 4), [(1,)], 2
    )
    rows = np.array(rows_of(layouts[0]))
    alone = {
        (number, *entry)
        for number in range(layouts[0].first_round, layouts[0].stop_round)
        for entry in assigned(
            Destinations([layouts[0].layout(number)]), _within(rows, layouts[0].layout(number))
        )
    }
    destinations = find_destinations(layouts)
    assert isinstance(destinations, RoundDestinations)
    assert len(assigned(destinations, rows)) == len(alone)  # type: ignore[arg-type]
    _, runs, places = destinations.assign(np.zeros(0, np.int64))
    assert len(runs) == len(places) == 0


def _within(rows: np.ndarray, layout: WindowRuns) -> np.ndarray:
    return rows[(rows >= layout.first_row) & (rows < layout.stop_row)]


@by_day(40)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(1, 80)), min_size=1, max_size=4),
    st.booleans(),
    st.data(),
)
def test_a_window_is_scattered_over_the_stretches_of_its_leg(
    phases: list[tuple[int, int, int]], shuffled: bool, data: st.DataObject
) -> None:
    # source 0, whose share is never nothing in the last stretch
    phases = [*phases, (1, 2, 500)]
    start, before = 30, 12
    of_source: list[int] = []
    stretches = []
    for mine, other, rows in phases:
        if mine + other:
            sequence = ShareSequence([mine, other], KEY)
            if mine:
                stretches.append(SourceStretch(start, start + rows, before, sequence))
            taken = [place for place in range(rows) if sequence.sources[place] == 0]
            of_source += [start + place for place in taken]
            start, before = start + rows, before + len(taken)
    rows = data.draw(st.integers(1, len(of_source)))
    first = data.draw(st.integers(0, len(of_source) - rows))
    key = derive_key(7, "rows", 0, 0) if shuffled else None
    order = scatter_window(key, rows, 12 + first, 0, stretches)
    permuted = Permutation(key, rows).positions(0, rows) if key is not None else np.arange(rows)
    places = [of_source[first + int(at)] for at in permuted]
    cut = data.draw(st.integers(0, rows))
    sent = pickle.loads(pickle.dumps(order))
    for library in (nullcontext, without_library):
        with library():
            assert [*order.epoch_rows(0, cut).tolist(), *sent.epoch_rows(cut, rows).tolist()] == places
    assert order.stored_rows(np.array(places)).tolist() == list(range(rows))
    assert not order.is_stored
