"""Divides the rows of steps among bins of nearly equal cost, and numbers rows by group, in C."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from windrow.shuffle.kernels import native
from windrow.shuffle.kernels.native import RunIds


def balance(
    costs: NDArray[np.int64],
    starts: NDArray[np.int64],
    bins: int,
    room: NDArray[np.int64] | None,
    exchanges: int,
) -> NDArray[np.int32]:
    """(rows,) the bin of each row, as `windrow.shuffle.order.step_balance` describes.

    ``costs`` are below 2^32. The rows of step s are those from ``starts[s]`` on, ``starts`` ends with their number.
    ``room`` has the rows that each bin takes of a step, (bins,) of any, or (steps, bins); None: any number.
    """
    sizes = np.diff(starts)
    most = int(sizes.max(initial=0))
    native._require(
        starts.ndim == 1 and len(starts) > 0 and starts.dtype == np.int64 and starts[0] == 0, "starts"
    )
    native._require(bool((sizes >= 0).all()) and most < 2**31, "starts")
    native._require(native._is(costs, np.int64, int(starts[-1])) and 0 < bins < 2**31, "costs and bins")
    if room is not None:
        shape = (bins,) if room.ndim == 1 else (len(sizes), bins)
        native._require(native._is(room, np.int64, *shape) and bool((room >= 0).all()), "room")
        native._require(bool((room.sum(axis=-1) >= sizes).all()), "room")
    taken = np.zeros(bins, np.int64) if room is None else np.ascontiguousarray(np.minimum(room, 2**31 - 1))
    stride = 0 if taken.ndim == 1 else bins
    out = np.empty(len(costs), np.int32)
    native.LIBRARY.windrow_balance_steps(
        len(sizes), starts, bins, room is None, exchanges, stride, costs, taken, *_scratch(bins, most), out
    )
    return out


def _scratch(bins: int, rows: int) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.uint64]]:
    """Memory for dividing a step of so many rows."""
    return np.empty(bins, np.int64), np.empty(5 * bins + 2 * rows, np.int32), np.empty(2 * rows, np.uint64)


def cut(
    costs: NDArray[np.float64],
    tokens: NDArray[np.float64],
    bins: int,
    limit: int,
    exchanges: int,
    units: float,
    parts: int,
) -> int:
    """How many of some rows make a step, as `windrow.shuffle.order.step_balance.find_step` describes.

    Costs are counted in ``units`` parts of the largest of the step, at most 2^31. ``parts``: the microbatches of a bin,
    each padded by itself; 0: no row is padded.
    """
    most, groups = len(costs), max(bins, parts)
    native._require(_are_floats(costs, tokens) and len(tokens) == most < 2**31, "costs and tokens")
    native._require(0 < bins < 2**31 and 0 < units <= 2**31 and 0 <= parts < 2**31, "bins, units and parts")
    sums, whole, own = np.empty(groups), np.empty(most, np.int64), np.empty(2 * most)
    out = np.empty(2 * most, np.int32)
    arguments = most, bins, limit, exchanges, units, parts, costs, tokens, sums, whole, own
    found: int = native.LIBRARY.windrow_cut(*arguments, *_scratch(groups, most), out)
    return found


def _are_floats(*arrays: NDArray[np.float64]) -> bool:
    return all(each.ndim == 1 and each.dtype == np.float64 and each.flags.c_contiguous for each in arrays)


def number(keys: NDArray[np.uint32], starts: NDArray[np.int64]) -> NDArray[np.uint32]:
    """(rows,) the number of each row, where those of the group ``keys`` names are numbered on from ``starts``."""
    native._require(native._is(keys, np.uint32, len(keys)) and len(keys) <= native.MAX_ROWS, "keys")
    native._require(
        native._is(starts, np.int64, len(starts)) and int(keys.max(initial=0)) < max(1, len(starts)), "starts"
    )
    out = np.empty(len(keys), np.uint32)
    native.LIBRARY.windrow_number(len(keys), keys, starts.copy(), out)
    return out


def find_runs(
    numbers: NDArray[np.uint32], firsts: NDArray[np.uint32], ids: RunIds
) -> tuple[RunIds, NDArray[np.uint32]]:
    """(rows,) the id of each row's run, the last one whose first number is not above the row's, and its place."""
    native._require(native._is(numbers, np.uint32, len(numbers)) and numbers.flags.c_contiguous, "numbers")
    native._require(native._is(firsts, np.uint32, len(ids)) and ids.dtype in native._RUN_TYPES, "runs")
    native._require(len(ids) > 0 and int(numbers.min(initial=native.MAX_ROWS)) >= int(firsts[0]), "numbers")
    runs, places = np.empty(len(numbers), ids.dtype), np.empty(len(numbers), np.uint32)
    native.LIBRARY.windrow_find_runs(len(numbers), numbers, len(ids), firsts, ids.itemsize, ids, runs, places)
    return runs, places
