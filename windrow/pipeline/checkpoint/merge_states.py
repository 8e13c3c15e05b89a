"""Merges the states that the shards of a stream saved separately into one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

from windrow.core.errors import PlanError, StateError
from windrow.core.user_warnings import warn_user
from windrow.pipeline.checkpoint.state import State, describe_differences, parse_state

_CHOICES = ("error", "repeat", "skip")


def merge_state_dicts(
    states: Sequence[Mapping[str, Any]], on_mismatch: Literal["error", "repeat", "skip"] = "error"
) -> dict[str, Any]:
    """Merge states that the shards of a stream have saved into one state to load into all shards.

    States of the same step are equal, and any of them is the result. If they were saved at
    different steps, only some shards delivered the rows in between, and no state fits all.

    Parameters
    ----------
    states
        From ``Shard.state_dict()``, one or more.
    on_mismatch
        For states of different steps. ``"error"``: raise. ``"repeat"``: resume from the smallest
        step, so that rows are read again. ``"skip"``: resume from the largest, so that rows are
        left out. Both warn, and name the rows.

    Raises
    ------
    StateError
        If there are no states, one is corrupt, or they belong to different streams; also if they
        are at different steps and ``on_mismatch`` is ``"error"``: then it names both.

    Examples
    --------
    >>> import pyarrow as pa, pyarrow.parquet as pq, windrow
    >>> pq.write_table(pa.table({"x": range(8)}), "numbers.parquet")
    >>> left, right = windrow.read_parquet("numbers.parquet").split(2)
    >>> batches = left.iter_batches(batch_size=2), right.iter_batches(batch_size=2)
    >>> [next(each)["x"].tolist() for each in batches]
    [[0, 1], [2, 3]]
    >>> state = windrow.merge_state_dicts([left.state_dict(), right.state_dict()])
    >>> state["row"]
    4
    """
    if on_mismatch not in _CHOICES:
        raise PlanError(f"on_mismatch={on_mismatch!r} must be one of {', '.join(map(repr, _CHOICES))}")
    parsed = [parse_state(state) for state in states]
    if not parsed:
        raise StateError("there are no states to merge: pass those of all shards")
    for number, state in enumerate(parsed):
        if differences := describe_differences(parsed[0], state, ("state 0", f"state {number}")):
            raise StateError(f"states 0 and {number} are of different streams:{differences}")
    numbers = range(len(parsed))
    first = min(numbers, key=lambda number: _place(parsed[number]))
    last = max(numbers, key=lambda number: _place(parsed[number]))
    for earlier, later in pairwise(sorted(parsed, key=_place)):
        _check_corrupt(earlier, later)
    if _place(parsed[first]) == _place(parsed[last]):
        return parsed[0].to_dict()
    _report_mismatch(parsed, first, last, on_mismatch)
    return parsed[first if on_mismatch == "repeat" else last].to_dict()


def _check_corrupt(earlier: State, later: State) -> None:
    """Check that blocks once skipped as corrupt stay skipped, and are the same for all shards."""
    missing = set(earlier.corrupt) - set(later.corrupt)
    if missing or (_place(earlier) == _place(later) and earlier.corrupt != later.corrupt):
        raise StateError(
            f"the states are of different streams: blocks {list(earlier.corrupt)} were skipped as corrupt in one, "
            f"blocks {list(later.corrupt)} in the other; processes that read independently must see the same files"
        )


def _place(state: State) -> tuple[int, int]:
    return state.epoch, state.row


def _report_mismatch(parsed: Sequence[State], first: int, last: int, on_mismatch: str) -> None:
    a, b = parsed[first], parsed[last]
    span = f"from row {a.row:,} of epoch {a.epoch} to row {b.row:,} of epoch {b.epoch}"
    if on_mismatch == "error":
        raise StateError(
            f"the states are not of the same step: state {first} is at row {a.row:,} of epoch {a.epoch}, "
            f"state {last} at row {b.row:,} of epoch {b.epoch}. Save all shards after the same step, or pass "
            "on_mismatch='repeat' or 'skip'"
        )
    rows = _rows_between(a, b)
    amount = "" if rows is None else f"{rows:,} {'tokens' if a.packing else 'rows'}, "
    outcome = (
        "read again by the shards that had them"
        if on_mismatch == "repeat"
        else ("left out by the shards that lacked them")
    )
    warn_user(f"{amount}{span}, are {outcome}")


def _rows_between(a: State, b: State) -> int | None:
    """Rows of the stream between two states; None where an epoch's rows are not known."""
    if a.epoch == b.epoch:
        return b.row - a.row
    if a.filter or a.row_changes or a.packing:
        return None
    return (b.epoch - a.epoch) * a.rows + b.row - a.row
