"""The legs of a mixture: every row of every source comes once, where the laws say, however legs are cut."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.laws.examples import examples
from tests.laws.mixture_cases import MIXTURES, PACKED, MixedCase, MixedRows, SourceCase
from windrow.pipeline.plan import leg as planning
from windrow.pipeline.plan.held_windows import find_largest_round
from windrow.pipeline.plan.mixture import Mixture, WhenExhausted
from windrow.pipeline.plan.mixture_leg import MixtureLeg
from windrow.pipeline.plan.shares import Shares
from windrow.shuffle.order.epoch_plan import WindowCut
from windrow.shuffle.order.round_runs import MAX_SLICES, find_slice

ROWS = 240


@contextmanager
def legs_of(work: int, windows: int = 1) -> Iterator[None]:
    """Plan this much work at a time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "_LEG_WORK", work)
        patch.setattr(planning, "_LEG_WINDOWS", windows)
        yield


def plan(case: MixedCase) -> Mixture:
    """The mixture of a case; nothing is read."""
    found = case.pipeline("threads")._plan.mixture
    assert found is not None
    return found


def follow(mixture: Mixture, step_rows: int, rows: int = ROWS) -> Iterator[MixtureLeg]:
    """The legs of a mixture, one after the other, up to some row."""
    leg = MixtureLeg(mixture, mixture.start, 0, step_rows)
    while True:
        if leg.stop > leg.row:
            yield leg
        if leg.is_last or leg.stop >= rows:
            return
        leg = MixtureLeg(mixture, leg.point_at(leg.stop), leg.stop, step_rows)


def expect(case: MixedCase, step_rows: int, rows: int = ROWS) -> list[int]:
    """The number of the source of each row, by the reference."""
    model, found = MixedRows(case), list[str]()
    while len(found) < rows and (step := model.step(step_rows)):
        found += step
        if len(step) < step_rows:
            break
    return [case.names.index(name) for name in found]


def sources_of(leg: MixtureLeg, stop: int) -> list[int]:
    """The number of the source of each row of a leg, by where it says that the rows of sources come."""
    stop = min(stop, leg.stop)
    first, last = leg.counts_at(leg.row), leg.counts_at(stop)
    found = np.full(stop - leg.row, -1)
    for source, (begin, end) in enumerate(zip(first.tolist(), last.tolist(), strict=True)):
        places = leg.places(source, np.arange(begin, end)) - leg.row
        assert (np.diff(places) > 0).all()
        assert (found[places] == -1).all()
        found[places] = source
    assert (found >= 0).all()
    return found.tolist()


@examples(60)
@given(MIXTURES | PACKED, st.integers(1, 40), st.sampled_from([1, 3, 20, 1024]))
def test_rows_of_all_sources_come_once_where_the_laws_say(case: MixedCase, step_rows: int, work: int) -> None:
    mixture, found = plan(case), list[int]()
    expected = expect(case, step_rows)
    with legs_of(work):
        for leg in follow(mixture, step_rows):
            assert leg.row == len(found)
            assert leg.is_last or (leg.stop - leg.row) % step_rows == 0
            found += sources_of(leg, ROWS + step_rows)
    rows = min(len(found), ROWS)
    assert found[:rows] == expected[:rows]
    assert rows == min(len(expected), ROWS)


@examples(40)
@given(MIXTURES | PACKED, st.integers(1, 40), st.sampled_from([3, 1024]), st.data())
def test_any_step_has_a_point_from_which_the_rest_is_the_same(
    case: MixedCase, step_rows: int, work: int, data: st.DataObject
) -> None:
    with legs_of(work):
        leg = MixtureLeg(plan(case), plan(case).start, 0, step_rows)
        steps = min(leg.stop, ROWS) // step_rows
        row = data.draw(st.integers(0, steps)) * step_rows
        point = leg.point_at(row)
        again = MixtureLeg(leg.mixture, point, row, step_rows)
        assert (again.counts_at(row) == leg.counts_at(row)).all()
        stop = min(leg.stop, again.stop, ROWS)
        if stop > row:
            assert sources_of(again, stop) == sources_of(leg, stop)[row:]
            assert leg.agrees(again)
        after = again.point_at(row)
        assert (after.counts, after.row, after.steps) == (point.counts, point.row, point.steps)
        # where it ends at the same row, a shard that opens it later can share what is planned
        if again.stop == leg.stop and stop > row:
            assert leg.serves(point, row, step_rows)
        assert not leg.serves(point, row, step_rows + 1)


def _is_held(leg: MixtureLeg, window: int, number: int, place: int, most: int) -> bool:
    """Whether a window's rows of one round are held when another round is read."""
    begin, end = leg.rounds.first[window], leg.rounds.last[window] + 1
    return find_slice(place, begin, end, most) >= find_slice(number, begin, end, most)


@examples(40)
@given(MIXTURES | PACKED, st.integers(1, 30), st.sampled_from([1, 20]), st.integers(1, 50))
def test_rounds_need_the_windows_that_have_rows_in_them(
    case: MixedCase, step_rows: int, work: int, round_rows: int
) -> None:
    mixture = plan(case)
    mixture = Mixture(mixture.sources, mixture.shares, mixture.when_exhausted, mixture.seed, round_rows)
    with legs_of(work):
        for leg in follow(mixture, step_rows, 100):
            if leg.stop - leg.row > 2_000:
                return
            held: dict[int, set[int]] = {}
            first, last = leg.counts_at(leg.row).tolist(), leg.counts_at(leg.stop).tolist()
            covered = {source: list[int]() for source in range(len(mixture.sources))}
            for number, needed in enumerate(leg.windows):
                begin = max(needed.window.start, first[needed.source])
                end = min(needed.window.stop, last[needed.source])
                covered[needed.source] += range(begin, end)
                places = leg.places(needed.source, np.arange(begin, end)).tolist()
                assert (places[0], places[-1] + 1) == (needed.first_row, needed.stop_row)
                for place in places:
                    held.setdefault(place // round_rows, set()).add(number)
            if case.packed:
                # windows share the sequences in which one ends and the other begins
                covered = {source: sorted(set(numbers)) for source, numbers in covered.items()}
            assert covered == {source: list(range(first[source], last[source])) for source in covered}
            firsts = [needed.first_row for needed in leg.windows]
            assert firsts == sorted(firsts)
            assert range(leg.rounds.start, leg.rounds.stop) == range(min(held), max(held) + 1)
            for number, windows in held.items():
                assert windows <= set(leg.rounds.windows(number))
            sizes = np.ones(sum(len(source.blocks.rows) for source in mixture.sources), np.int64)

            # each block stands for as many rows as its window has on the mean, so each row of a window for one
            for most in (1, 3, MAX_SLICES):
                expected = 0.0
                for number in held:
                    found = 0.0
                    for window in leg.rounds.windows(number):
                        needed = leg.windows[window]
                        rows = np.arange(needed.window.start, needed.window.stop)
                        inside = rows[(rows >= first[needed.source]) & (rows < last[needed.source])]
                        places = (leg.places(needed.source, inside) // round_rows).tolist()
                        # rows that come in later legs are held to the end
                        kept = sum(_is_held(leg, window, number, place, most) for place in places)
                        kept += int((rows >= last[needed.source]).sum())
                        if number == leg.rounds.start:
                            # blocks are read whole, whatever was delivered before
                            kept = len(rows)
                        found += len(needed.window.blocks) * kept / len(rows)
                    expected = max(expected, found)
                assert abs(find_largest_round(leg, sizes, most) - expected) < 1 + 1e-6


def _case(shares: Shares, when: WhenExhausted = "stop") -> MixedCase:
    sources = (
        SourceCase((10,) * 6, WindowCut(blocks_per_window=2), 1, None),
        SourceCase((5,), WindowCut(), 2, 1),
        SourceCase((7, 0, 9), WindowCut(blocks_per_window=1), None, 2),
    )
    return MixedCase(sources, (0, 1, 2), shares, when)


def test_exhausted_sources_end_a_mixture_or_leave_it() -> None:
    shares = Shares.constant({"c": 2, "a": 1, "é": 1})
    (stopped,) = follow(plan(_case(shares)), 8, 10**6)
    # the sixth row of the source that has five would come next
    assert stopped.is_last
    assert stopped.counts_at(stopped.stop)[1] == 5
    assert abs(stopped.stop - 4 * 5) < 4
    leg = next(follow(plan(_case(shares, "drop")), 8))
    assert [stretch.sequence.weights.astype(bool).tolist() for stretch in leg.stretches] == [
        [True, True, True],
        [True, False, True],
        [True, False, False],
    ]
    assert leg.stretches[2].counts[1:].tolist() == [5, 32]
    assert leg.weights_at(leg.stretches[2].start).tolist() == [2, 1, 1]
    endless = next(follow(plan(_case(shares, "repeat")), 8))
    assert not endless.is_last
    assert len(endless.stretches) == 1


@pytest.mark.parametrize("work", [1, 1024])
def test_a_source_is_dropped_with_the_row_that_it_does_not_have(work: int) -> None:
    """Up to that row, a mixture is where one is that repeats its sources, also where a leg ends there."""
    sources = (SourceCase((2,), passes=1), SourceCase((100,)))
    case = MixedCase(sources, (0, 1), Shares.constant({"c": 1, "a": 1}), "drop")
    mixture, repeating = plan(case), plan(replace(case, when_exhausted="repeat"))
    dropped_at = MixtureLeg(mixture, mixture.start, 0, 1).stretches[1].start
    for step_rows in (1, dropped_at):
        with legs_of(work):
            leg = MixtureLeg(mixture, mixture.start, 0, step_rows)
            while leg.stop < dropped_at:
                leg = MixtureLeg(mixture, leg.point_at(leg.stop), leg.stop, step_rows)
            point = leg.point_at(dropped_at)
            assert point == MixtureLeg(repeating, repeating.start, 0, step_rows).point_at(dropped_at)
            again = MixtureLeg(mixture, point, dropped_at, step_rows)
            assert again.point_at(dropped_at) == point
            after = again.point_at(dropped_at + step_rows)
            assert (after.row, after.counts) == (dropped_at, tuple(leg.counts_at(dropped_at).tolist()))


def test_a_schedule_in_steps_follows_the_size_of_steps_from_where_it_changes() -> None:
    mixture = plan(_case(Shares.steps({0: {"c": 1}, 3: {"c": 1, "é": 1}, 5: {"c": 1}}), "repeat"))
    leg = MixtureLeg(mixture, mixture.start, 0, 10)
    assert [stretch.start for stretch in leg.stretches] == [0, 30, 50]
    again = MixtureLeg(mixture, leg.point_at(40), 40, 25)
    # a step more with 25 rows
    assert [(stretch.start, stretch.stop) for stretch in again.stretches[:2]] == [
        (30, 65),
        (65, again.stop),
    ]
    c, a, é = again.counts_at(65).tolist()
    assert (c + é, a) == (65, 0)
    assert abs(é - 35 / 2) < 1


def test_a_leg_ends_with_a_step_also_where_shares_change_within_one() -> None:
    shares = Shares.steps({0: {"c": 1}, 25: {"c": 1, "é": 1}, 33: {"é": 1}}, unit="rows")
    mixture = plan(_case(shares, "repeat"))
    expected = expect(_case(shares, "repeat"), 10, 200)
    for work in range(1, 40):
        found: list[int] = []
        with legs_of(work):
            for leg in follow(mixture, 10, 100):
                assert all(stretch.start < stretch.stop for stretch in leg.stretches)
                found += sources_of(leg, 200)
        assert found[:100] == expected[:100]


def test_a_mixture_can_end_within_the_step_in_which_shares_change() -> None:
    """What is known at its end is what it has delivered, not what the step's shares before would have given."""
    ends_within = 0
    for step_rows in range(2, 40):
        mixture = plan(_case(Shares.steps({0: {"c": 1}, 1: {"c": 1, "a": 1}}), "stop"))
        leg = MixtureLeg(mixture, mixture.start, 0, step_rows)
        ends_within += step_rows < leg.stop < 2 * step_rows
        again = MixtureLeg(mixture, leg.point_at(leg.stop), leg.stop, step_rows)
        assert again.counts_at(leg.stop).tolist() == leg.counts_at(leg.stop).tolist()
        assert leg.agrees(again)
    assert ends_within


def test_no_more_of_a_sequence_is_drawn_than_comes_before_the_next_change() -> None:
    changes = {at * 16: {"c": 5 + at % 2, "a": 4, "é": 1} for at in range(200)}
    case = _case(Shares.steps(changes, unit="rows"))
    # these come to an end, but not soon
    sources = tuple(replace(source, passes=10_000) for source in case.sources)
    leg = next(follow(plan(replace(case, sources=sources)), 8))
    assert len(leg.stretches) > 100
    assert leg.counts_at(leg.stop).sum() == leg.stop
    drawn = [len(stretch.sequence._begun.sources) for stretch in leg.stretches[:-1]]
    assert max(drawn) == 256
