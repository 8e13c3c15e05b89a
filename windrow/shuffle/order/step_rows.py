"""Divides the rows of a window's steps among shards and microbatches by their costs, as `Balance` says.

With n shards of B rows, the n·B rows of a step are assigned to bins of nearly equal cost. A step that lies in several
windows is divided as a whole, in each of them in the same way. With W worker processes of each trainer, a step of all
shards is W units, steps of the trainers; without, a unit is a step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from windrow.shuffle.order.balance import Balance
from windrow.shuffle.order.shard_assignment import ShardAssignment
from windrow.shuffle.order.step_balance import balance_steps, find_imbalances, find_microbatches

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class WindowCuts:
    """Where the steps of a window begin that end by their tokens.

    ``starts`` holds the epoch's row at which each step with rows here begins, and the end of the last one. They are
    numbered by these rows. ``is_end``: whether no step follows.
    """

    starts: Ints
    is_end: bool


@dataclass(frozen=True, eq=False)
class StepRows:
    """How the rows of a window are divided.

    ``first_unit`` is the number of the first unit with rows here, counted from the assignment's first row.
    """

    assignment: ShardAssignment
    total: int | None
    first_unit: int
    sizes: Ints  # (units, trainers, microbatches) rows in this window
    costs: NDArray[np.float64]  # the same shape: the cost of the whole microbatch
    earlier: Ints  # (trainers,) rows of the first unit in earlier windows
    later: Ints  # (trainers,) rows of the last unit in later windows, and those that padding repeats
    # (rows,) the flat index in ``sizes``; its size for rows that no shard gets. With sequences, of each of these
    keys: NDArray[np.uint32]
    padding: tuple[
        tuple[int, int, int], ...
    ]  # (row of the window, shard, place) of each row that padding repeats
    # rows of the window that no shard gets
    left_out: int = 0
    # where steps end by their tokens
    cuts: WindowCuts | None = None
    # (sequences,) the tokens of each sequence that lie in the window, see `step_sequences.py`; None: without sequences
    tokens: Ints | None = None
    # (units, 2) the lengths of a unit's rows, and what they come to if each microbatch is padded to its longest row
    lengths: NDArray[np.float64] | None = None

    @property
    def steps(self) -> Ints:
        """(units,) the number of the step of each unit."""
        if self.cuts is not None:
            # without steps, there is one unit without rows
            return self.cuts.starts[: max(1, len(self.cuts.starts) - 1)]
        return (self.first_unit + np.arange(len(self.sizes))) // self.assignment.workers

    @property
    def imbalances(self) -> tuple[float, ...]:
        """The cost of the most expensive trainer over the mean of all, of each unit that ends in the window."""
        return find_imbalances(self.costs.sum(axis=2)[self._ended])

    @property
    def padded_lengths(self) -> tuple[float, float]:
        """The sums of `lengths` over the units that end in the window."""
        if self.lengths is None:
            return 0.0, 0.0
        length, padded = self.lengths[self._ended].sum(axis=0).tolist()
        return length, padded

    @property
    def _ended(self) -> NDArray[np.bool_]:
        """(units,) whether the last row of each unit that a shard gets lies in the window."""
        found: NDArray[np.bool_] = self.sizes.sum(axis=(1, 2)) > 0
        found[-1] &= not self.later.any()
        return found


class _Known(NamedTuple):
    """What is known of rows from the epoch's row ``low`` on."""

    low: int
    costs: NDArray[np.float64]
    lengths: NDArray[Any] | None


@dataclass(frozen=True, eq=False)
class _Units:
    """The bins of the rows of some units that follow one another."""

    starts: Ints  # (units + 1,) in rows
    trainers: NDArray[np.int32]  # (rows,) the trainer of each row; -1: none
    parts: NDArray[np.int32]  # (rows,) its microbatch


def divide_rows(
    assignment: ShardAssignment,
    *,
    window: tuple[int, int],
    total: int | None,
    low: int,
    costs: NDArray[np.float64],
    lengths: NDArray[Any] | None = None,
) -> StepRows:
    """Divide the rows of a window by the assignment's `Balance`.

    Parameters
    ----------
    window
        The epoch's rows of the window, from the first one to behind the last one.
    total
        Rows of the epoch; None while unknown, then all rows of the window belong to full steps.
    low, costs
        What is known: the cost of each row of the epoch from row ``low`` on. It contains the window and all later
        rows of its steps. Units that begin before ``low`` are divided in order: no shard needs them.
    lengths
        The lengths of the same rows, if batches may be padded by them.
    """
    balance, trainers = assignment.cost_balance, assignment.trainers
    (first, stop), start = window, assignment.start_row
    unit = trainers * assignment.batch_rows
    first_unit = max(0, first - start) // unit
    ends = stop if total is None else min(stop, total)
    last_unit = max(first_unit, -(-(ends - start) // unit))
    begin = start + first_unit * unit
    rest = None if total is None else (total - start) % unit
    full = last_unit if total is None else min(last_unit, (total - start) // unit)
    units, known = [], max(0, -(-(low - start) // unit))
    if max(first, start) >= ends:
        # no row here belongs to a step
        last_unit = full = first_unit
    if first_unit < min(known, full):
        units.append(_divide_in_order(min(known, full) - first_unit, trainers, assignment.batch_rows))
    known = min(max(known, first_unit), full)
    if known < full:
        at = start + known * unit - low
        units.append(
            _divide_units(
                costs[at : at + (full - known) * unit],
                np.arange(full - known + 1, dtype=np.int64) * unit,
                trainers,
                balance,
                None if balance.rows == "free" else np.full(trainers, assignment.batch_rows),
            )
        )
    if rest and full < last_unit:
        at = start + full * unit - low
        units.append(_divide_rest(assignment, costs[max(0, at) : at + rest], rest))
    return _count(assignment, units, window, total, begin, first_unit, _Known(low, costs, lengths))


def divide_cut_rows(
    assignment: ShardAssignment,
    *,
    window: tuple[int, int],
    total: int | None,
    low: int,
    measures: NDArray[np.float32],
    cuts: WindowCuts,
) -> StepRows:
    """Divide the rows of a window whose steps end by their tokens; the arguments are those of `divide_rows`.

    ``measures`` holds what the rows measure, in place of their costs. What is known begins at the first of these steps
    or before.
    """
    balance = assignment.cost_balance
    assert balance.budget is not None, "steps are cut by tokens"
    begin, trainers = int(cuts.starts[0]), assignment.shards
    own = slice(begin - low, int(cuts.starts[-1]) - low)
    costs, tokens = balance.costs(measures), balance.budget.count(measures[own], balance.column)
    (kept,) = np.nonzero(tokens)
    borders = np.searchsorted(kept, cuts.starts - begin).astype(np.int64)
    found = _divide_units(costs[own][kept], borders, trainers, balance, None)
    to, parts = np.full(len(tokens), -1, np.int32), np.zeros(len(tokens), np.int32)
    to[kept], parts[kept] = found.trainers, found.parts
    units = [_Units(cuts.starts - begin, to, parts)]
    known = _Known(low, costs, balance.budget.clip(measures))
    divided = _count(assignment, units, window, total, begin, 0, known)
    has_last = len(borders) > 1 and cuts.is_end
    if has_last and assignment.equal == "pad" and borders[-1] - borders[-2] < trainers:
        divided = _pad_cut_step(divided, to[int(cuts.starts[-2]) - begin :], window, cuts)
    first, stop = window
    is_left = divided.keys[max(0, assignment.start_row - first) : stop - first] == divided.sizes.size
    return replace(divided, left_out=int(is_left.sum()), cuts=cuts)


def _divide_units(
    costs: NDArray[np.float64], starts: Ints, trainers: int, balance: Balance, room: Ints | None
) -> _Units:
    to = balance_steps(costs, starts, trainers, room)
    return _Units(starts, to, find_microbatches(costs, starts, to, trainers, balance.microbatches))


def _divide_in_order(units: int, trainers: int, batch_rows: int) -> _Units:
    starts = np.arange(units + 1, dtype=np.int64) * (trainers * batch_rows)
    to = np.tile(np.repeat(np.arange(trainers, dtype=np.int32), batch_rows), units)
    return _Units(starts, to, np.zeros(len(to), np.int32))


def _divide_rest(assignment: ShardAssignment, costs: NDArray[np.float64], rest: int) -> _Units:
    """The last unit of an epoch, which is not full."""
    balance, trainers = assignment.cost_balance, assignment.trainers
    starts = np.array([0, rest], np.int64)
    if assignment.drop_last or len(costs) < rest:
        return _Units(starts, np.full(rest, -1, np.int32), np.zeros(rest, np.int32))
    share, more = divmod(rest, trainers)
    kept = share * trainers if assignment.equal is True else rest
    if assignment.equal == "pad":
        room = np.full(trainers, share + (more > 0), np.int64)
    else:
        room = share + (np.arange(trainers) < (0 if assignment.equal is True else more))
    is_free = balance.rows == "free" and share > 0 and assignment.equal != "pad"
    divided = _divide_units(
        costs[:kept],
        np.array([0, kept], np.int64),
        trainers,
        balance,
        None if is_free else room.astype(np.int64),
    )
    none = np.full(rest - kept, -1, np.int32)
    return _Units(starts, np.append(divided.trainers, none), np.append(divided.parts, np.zeros_like(none)))


def _count(
    assignment: ShardAssignment,
    units: list[_Units],
    window: tuple[int, int],
    total: int | None,
    begin: int,
    first_unit: int,
    known: _Known,
) -> StepRows:
    """Count what of the units, which begin at the epoch's row ``begin``, lies in the window."""
    trainers, parts = assignment.trainers, assignment.cost_balance.microbatches
    counts = [len(each.starts) - 1 for each in units]
    rows_of_units = [np.zeros(0, np.int64), *(np.diff(each.starts) for each in units)]
    to = np.concatenate([each.trainers for each in units] or [np.zeros(0, np.int32)])
    shape = (max(1, sum(counts)), trainers, parts)
    bins = shape[0] * trainers * parts
    # the first bin of each row's unit, then the row's own
    flat = np.repeat(np.arange(sum(counts)) * (trainers * parts), np.concatenate(rows_of_units))
    if parts == 1:
        flat += to
    elif units:
        flat += to * np.int64(parts)
        flat += np.concatenate([each.parts for each in units])
    if to.min(initial=0) < 0:
        flat[to < 0] = bins
    spent = _slice(known.costs, begin - known.low, len(flat))
    lengths = None
    if known.lengths is not None:
        lengths = _pad(flat, _slice(known.lengths, begin - known.low, len(flat)), shape)
    all_costs = np.bincount(flat, spent, minlength=bins + 1)[:bins].reshape(shape).astype(np.float64)

    first, stop = window
    # rows before the first unit, which nobody needs, and behind the last one
    keys = np.full(stop - first, bins, np.uint32)
    lead = max(0, begin - first)
    skipped = max(0, first - begin)
    own = flat[skipped : max(skipped, stop - begin)]
    keys[lead : lead + len(own)] = own
    before, behind, sizes = (
        np.bincount(each, minlength=bins + 1)[:bins].reshape(shape)
        for each in (flat[:skipped], flat[skipped + len(own) :], flat)
    )
    sizes = sizes - before - behind
    earlier, later = before[0].sum(axis=1), behind[-1].sum(axis=1)
    padding: tuple[tuple[int, int, int], ...] = ()
    if (
        assignment.equal == "pad"
        and not assignment.drop_last
        and total is not None
        and not assignment.ends_by_tokens
    ):
        rest = (total - assignment.start_row) % (trainers * assignment.batch_rows)
        at = total - rest
        if rest and at - begin < len(flat):
            last = divmod(first_unit + shape[0] - 1, assignment.workers)
            repeats = _find_repeats(assignment, to[at - begin : at - begin + rest], *last)
            later = later + np.bincount([shard % trainers for _, shard, _ in repeats], minlength=trainers)
            padding = tuple(
                (at + row - first, shard, place) for row, shard, place in repeats if first <= at + row < stop
            )
    return StepRows(
        assignment,
        total,
        first_unit,
        sizes.astype(np.int64),
        all_costs,
        earlier.astype(np.int64),
        later.astype(np.int64),
        keys,
        padding,
        lengths=lengths,
    )


def _pad(flat: Ints, lengths: NDArray[Any], shape: tuple[int, int, int]) -> NDArray[np.float64]:
    """(units, 2) the lengths of a unit's rows, and those if each microbatch is padded, given the microbatch of each."""
    bins = int(np.prod(shape))
    longest = np.zeros(bins + 1, lengths.dtype)
    np.maximum.at(longest, flat, lengths)
    padded = longest * np.bincount(flat, minlength=bins + 1)
    own = np.bincount(flat, lengths, minlength=bins + 1)
    return np.stack([each[:bins].reshape(shape).sum(axis=(1, 2)) for each in (own, padded)], axis=1)


def _slice(costs: NDArray[Any], at: int, count: int) -> NDArray[Any]:
    """``count`` costs from index ``at`` on; 0 for those that are not known."""
    if at >= 0 and at + count <= len(costs):
        return costs[at : at + count]
    found = np.zeros(count)
    known = costs[max(0, at) : max(0, at + count)]
    lead = max(0, -at)
    found[lead : lead + len(known)] = known
    return found


def _find_repeats(
    assignment: ShardAssignment, to: NDArray[np.int32], step: int, worker: int
) -> list[tuple[int, int, int]]:
    """(row of the unit, shard, place) of each row that is repeated so that all shards have as many of the last unit."""
    trainers = assignment.trainers
    counts = np.bincount(to, minlength=trainers).tolist()
    share = -(-len(to) // trainers)
    found: list[tuple[int, int, int]] = []
    for trainer, count in enumerate(counts):
        for place in range(count, share):
            shard = worker * trainers + trainer
            found.append((len(found) % len(to), shard, step * assignment.place_stride + place))
    return found


def _pad_cut_step(
    divided: StepRows, to: NDArray[np.int32], window: tuple[int, int], cuts: WindowCuts
) -> StepRows:
    """Repeat rows of the last step, given the shard of each of its rows, for the shards that have none."""
    (kept,) = np.nonzero(to >= 0)
    begin, (first, stop) = int(cuts.starts[-2]), window
    repeats = _find_repeats(divided.assignment, to[kept], begin, 0)
    later = divided.later + np.bincount([shard for _, shard, _ in repeats], minlength=len(divided.later))
    rows = [(begin + int(kept[row]), shard, place) for row, shard, place in repeats]
    padding = tuple((row - first, shard, place) for row, shard, place in rows if first <= row < stop)
    return replace(divided, later=later, padding=padding)
