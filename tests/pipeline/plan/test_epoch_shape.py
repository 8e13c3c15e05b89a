"""Row counts: when they suffice to compute positions, against the assignment of every possible rest."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from windrow.pipeline.plan.epoch_shape import EpochCounts, EpochShape, Part, Stage
from windrow.shuffle.order.balance import Balance
from windrow.shuffle.order.shard_assignment import ShardAssignment

STAGES = (Stage("read", needs_order=False), Stage("place", needs_order=True))
WINDOWS = st.lists(st.lists(st.none() | st.integers(0, 6), max_size=3), max_size=5)


def counts_of(windows: list[list[int | None]]) -> EpochCounts:
    return EpochCounts(EpochShape(tuple(tuple(Part(rows, 1) for rows in parts) for parts in windows), STAGES))


def join(windows: list[list[int | None]]) -> list[int | None]:
    return [rows for parts in windows for rows in parts]


def naive_sum(rows: list[int | None]) -> int | None:
    return None if None in rows else sum(row for row in rows if row is not None)


@given(WINDOWS)
def test_sums(windows: list[list[int | None]]) -> None:
    counts = counts_of(windows)
    for window, parts in enumerate(windows):
        assert counts.window_rows(window) == naive_sum(parts)
        assert counts.first_row(window) == naive_sum(join(windows[:window]))
    assert counts.first_row(len(windows)) == counts.total == naive_sum(join(windows))


@given(WINDOWS, st.data())
def test_learning_a_part_is_as_knowing_it_before(
    windows: list[list[int | None]], data: st.DataObject
) -> None:
    counts = counts_of(windows)
    for at, parts in enumerate(windows):
        for part in range(len(parts)):
            if data.draw(st.booleans()):
                rows = parts[part] if parts[part] is not None else data.draw(st.integers(0, 6))
                assert rows is not None
                parts[part] = rows
                counts.record(at, part, rows)
                counts.record(at, part, rows)
    again = counts_of(windows)
    assert counts.total == again.total
    for window in range(len(windows)):
        assert counts.first_row(window) == again.first_row(window)
        assert counts.window_rows(window) == again.window_rows(window)
    assert counts.first_unknown() == again.first_unknown()


@given(WINDOWS, st.integers(1, 3), st.integers(1, 4))
def test_assignment_waits_for_unknown_row_counts_only(
    windows: list[list[int | None]], shards: int, batch_rows: int
) -> None:
    counts = counts_of(windows)
    assignment = ShardAssignment(shards, batch_rows)
    for window in range(len(windows)):
        stop = naive_sum(join(windows[: window + 1]))
        behind = join(windows[window + 1 :])
        known = 0
        for rows in behind:
            if rows is None:
                break
            known += rows
        enough = naive_sum(behind) is not None or (stop is not None and known >= -stop % assignment.step_rows)
        assert counts.is_ordered(window, assignment) == (stop is not None and enough)


def test_costs_of_a_step_need_whole_windows() -> None:
    counts, plain = counts_of([[3], [5, None], [9]]), ShardAssignment(2, 2)
    balanced = replace(plain, balance=Balance("x"))
    # a row is missing in the step, and five are counted behind; but which one comes first is not known
    assert [counts.is_ordered(0, each) for each in (plain, balanced)] == [True, False]
    counts.record(1, 1, 1)
    assert counts.is_ordered(0, balanced)


@given(WINDOWS)
def test_what_to_count_next(windows: list[list[int | None]]) -> None:
    counts = counts_of(windows)
    unknown = [
        (at, part) for at, parts in enumerate(windows) for part, rows in enumerate(parts) if rows is None
    ]
    assert counts.first_unknown() == (unknown[0] if unknown else None)
    for window in range(len(windows) + 1):
        full = [at for at, parts in enumerate(windows) if parts and at >= window]
        assert counts.next_with_parts(window) == (full[0] if full else len(windows))


@given(WINDOWS, st.data())
def test_windows_that_are_known_to_begin_somewhere(
    windows: list[list[int | None]], data: st.DataObject
) -> None:
    """As if shards started an epoch at several places, the earliest last."""
    counts = counts_of(windows)
    if None not in join(windows):
        return
    true = [[7 if rows is None else rows for rows in parts] for parts in windows]
    firsts = [sum(sum(parts) for parts in true[:window]) for window in range(len(windows) + 1)]
    starts = data.draw(st.lists(st.integers(0, len(windows)), min_size=1, unique=True))
    for window in sorted(starts, reverse=True):
        counts.start_at(window, firsts[window])
    assert counts.first_window == min(starts)
    for window in range(len(windows) + 1):
        told = any(begin <= window and naive_sum(join(windows[begin:window])) is not None for begin in starts)
        assert counts.first_row(window) == (firsts[window] if told else None)
    for window, parts in enumerate(windows):
        # knowing where the next window starts does not suffice
        if counts.is_ordered(window, ShardAssignment(1, 1)):
            assert counts.first_row(window) is not None
            assert counts.first_row(window + 1) is not None
            assert None not in parts
