"""Positions of rows, the sources that they come from, and the runs that they fall into, for `windrow.shuffle.order`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from windrow.shuffle.kernels import native
from windrow.shuffle.kernels.native import RunIds

# ROUNDS in C
_ROUNDS = 6
_PHILOX_BYTES, _MOST_RANKED = 16, 2**16


def walk(
    bits: int, keys: Sequence[int], multipliers: Sequence[int], size: int, start: int, stop: int
) -> NDArray[np.int64]:
    """Positions of rows under the permutation of `windrow.shuffle.order.permutation`, with cycle walking."""
    native._require(
        len(keys) == len(multipliers) == _ROUNDS and 0 <= start <= stop, "keys, multipliers, start and stop"
    )
    native._require(0 < bits <= 63 and 0 < size <= 2**bits, "bits and size")
    out = np.empty(stop - start, np.int64)
    words = np.array([keys, multipliers], np.uint64)
    native.LIBRARY.windrow_walk(bits, (bits + 1) // 2, *words, size - 1, start, stop - start, out)
    return out


def rank(key: bytes, rows: int) -> NDArray[np.uint16]:
    """(rows,) the ranks of up to 2^16 rows by 16 bytes of a key, as in `windrow.shuffle.order.permutation`."""
    native._require(len(key) == _PHILOX_BYTES and 0 <= rows <= _MOST_RANKED, "key and rows")
    # twice as many tell all but one in some hundred rows apart
    bits = (rows.bit_length() + 8) // 2
    # in C, a call of the generator makes four
    words, ends = np.empty(rows + 3, np.uint64), np.empty(2 << bits, np.uint32)
    half, order, ranks = (np.empty(rows, np.uint16) for _ in range(3))
    native.LIBRARY.windrow_rank(rows, bits, np.frombuffer(key, "<u8"), words, ends, half, order, ranks)
    return ranks


def assign(
    rows: NDArray[np.int64],
    first_row: int,
    stop_row: int,
    divisors: tuple[int, int, int],
    shards: NDArray[np.int64],
    ids: RunIds,
    none: int,
) -> tuple[RunIds, NDArray[np.uint32], NDArray[np.uint32]]:
    """Find the run of each row; ``rows`` are positions in the epoch, all below 2^32.

    Positions from ``first_row`` to ``stop_row`` form full steps. ``divisors`` are the rows per step, per
    batch and per run, each at least 1 and below 2^32. ``shards``, (n, 3), has for each shard the offset that
    turns a run's number in its stream into an index of ``ids`` (outside of it, the row gets the id ``none``),
    the number of its first run in this window, and how many rows of that run are in earlier windows.

    Returns (rows,) the run id of each row, (rows,) its place, the offset within the run, and the indices in
    ``rows`` of positions outside the full steps, whose runs and places are not set.
    """
    native._require(native._is(rows, np.int64, len(rows)) and len(rows) <= native.MAX_ROWS, "rows")
    native._require(all(1 <= each <= native.MAX_ROWS for each in divisors), "divisors")
    last_shard = (min(divisors[0], stop_row - first_row) - 1) // divisors[1]
    native._require(native._is(shards, np.int64, len(shards), 3) and last_shard < len(shards), "shards")
    native._require(ids.ndim == 1 and ids.dtype in native._RUN_TYPES, "ids")
    runs, places = np.empty(len(rows), ids.dtype), np.empty(len(rows), np.uint32)
    rest = np.empty(len(rows), np.uint32)
    bounds, found = (first_row, stop_row, *divisors), (runs, places, rest)
    others = native.LIBRARY.windrow_assign(
        len(rows), rows, *bounds, shards, ids.itemsize, len(ids), ids, none, *found
    )
    return runs, places, rest[:others]


def assign_rounds(
    rows: NDArray[np.int64],
    within: tuple[int, int],
    steps: tuple[int, int],
    divisors: tuple[int, int, int],
    rounds: tuple[int, int],
    tables: NDArray[np.int64],
    none: int,
    ids: type[np.uint16] | type[np.uint32],
) -> tuple[RunIds, NDArray[np.uint32], NDArray[np.uint32]]:
    """Find the run of each row of a source's window in a mixture.

    ``rows`` are rows of the mixture. Those outside of ``within`` get the id ``none``. ``steps`` are the row at which
    a step and a run of each shard begin, at most 2^32 rows before all others, and the one from which on steps are
    not full. ``divisors`` are the rows per step, batch and run, and ``rounds`` the row at which the first round
    begins and the rows of each. ``tables``, (rounds, shards, 3), has for each round and shard what, added to the
    number of a run since the first step, gives its id, or a negative number if it has none; the number of the
    round's first run; and how many rows of that run are in earlier rounds.

    Returns (rows,) the run id of each row, of the type ``ids``, (rows,) its place, the offset within the run, and
    the indices in ``rows`` of those in steps that are not full, whose runs and places are not set.
    """
    native._require(native._is(rows, np.int64, len(rows)) and len(rows) <= native.MAX_ROWS, "rows")
    (first, stop), (base, rest_row), (round_row, round_rows) = within, steps, rounds
    native._require(all(1 <= each <= native.MAX_ROWS for each in (*divisors, round_rows)), "divisors")
    native._require(
        base <= first and round_row <= first and stop - min(base, round_row) <= native.MAX_ROWS, "within"
    )
    shape = -(-(stop - round_row) // round_rows), -(-divisors[0] // divisors[1]), 3
    native._require(
        tables.ndim == 3 and all(has >= needs for has, needs in zip(tables.shape, shape, strict=True)),
        "tables",
    )
    native._require(native._is(tables, np.int64, *tables.shape[:2], 3), "tables")
    runs, places = np.empty(len(rows), ids), np.empty(len(rows), np.uint32)
    rest = np.empty(len(rows), np.uint32)
    bounds = first, stop, base, rest_row, *divisors, round_row, round_rows, tables.shape[1]
    found = runs, places, rest
    others = native.LIBRARY.windrow_assign_rounds(
        len(rows), rows, *bounds, tables, runs.itemsize, none, *found
    )
    return runs, places, rest[:others]


def scatter(
    numbers: NDArray[np.int64],
    first: int,
    weight: int,
    period: int,
    places: NDArray[np.int32],
    start: int,
) -> None:
    """Turn row numbers of a source into rows of a mixture, in place.

    The source has ``weight`` rows in a period of ``period`` rows. ``places`` holds their places, of the first ones
    alone if no number needs more. The first of these periods begins at the row ``start`` of the mixture and the number
    ``first`` of the source, at most 2^32 before all others.
    """
    native._require(native._is(numbers, np.int64, len(numbers)), "numbers")
    native._require(1 <= weight <= native.MAX_ROWS, "weight")
    native._require(native._is(places, np.int32, len(places)) and 1 <= len(places) <= weight, "places")
    native.LIBRARY.windrow_scatter(len(numbers), numbers, first, weight, period, places, start)


def draw_sources(weights: NDArray[np.int64], draws: NDArray[np.float64], horizon: int) -> NDArray[np.int32]:
    """(rows,) the source of each of the first rows of a period, which has as many rows as the weights add up to.

    ``draws``, (rows, 2), are numbers from 0 to less than 1. No row that can be one of the first is due behind
    ``horizon``.
    """
    sources, rows = len(weights), len(draws)
    native._require(native._is(weights, np.int64, sources) and weights.flags.c_contiguous, "weights")
    native._require(bool((weights >= 0).all()), "weights")
    total = int(weights.sum())
    # the product of two has to fit into 64 bits
    native._require(0 < rows <= horizon <= total < 2**31, "rows, horizon and weights")
    shortest = int(weights[weights > 0].min())
    native._require(horizon >= min(total, rows + -(-total // shortest)), "horizon")
    native._require(native._is(draws, np.float64, rows, 2) and draws.flags.c_contiguous, "draws")
    native._require(float(draws.min()) >= 0 and float(draws.max()) < 1, "draws")
    out = np.empty(rows, np.int32)
    following, sums = np.empty(4 * sources, np.int64), np.empty(sources)
    slack, tight = np.empty(horizon + 1, np.int32), np.empty(horizon + 1, np.int32)
    native.LIBRARY.windrow_draw_sources(
        sources, weights, total, rows, horizon, draws, following, sums, slack, tight, out
    )
    return out


def share_tokens(
    weights: NDArray[np.int64],
    tokens: NDArray[np.int64],
    documents: Sequence[NDArray[np.int32]],
    most: int,
    stop: int,
    place: int,
    seed: int,
) -> tuple[NDArray[np.int32], int | None]:
    """The sources of the next documents, and the one that has none left; see `windrow.shuffle.order.token_shares`."""
    sources = len(weights)
    native._require(native._is(weights, np.int64, sources) and bool((weights >= 0).all()), "weights")
    native._require(native._is(tokens, np.int64, sources) and bool((tokens >= 0).all()), "tokens")
    native._require(len(documents) == sources and most >= 0 and place >= 0 and 0 <= seed < 2**64, "documents")
    starts = np.cumsum([0, *map(len, documents)], dtype=np.int64)
    lengths = np.concatenate([np.zeros(0, np.int32), *documents])
    native._require(native._is(lengths, np.int32, int(starts[-1])) and bool((lengths >= 0).all()), "lengths")
    # a product of two has to fit into 64 bits
    largest = sum(tokens.tolist()) + int(lengths.sum(dtype=np.int64))
    native._require(0 < int(weights.sum()) * max(1, largest) < 2**63, "weights and tokens")
    out, missing = np.empty(min(most, len(lengths)), np.int32), np.empty(1, np.int64)
    tokens, following = tokens.copy(), np.empty(sources, np.int64)
    stop = min(stop, largest + 1)
    found = native.LIBRARY.windrow_share_tokens(
        sources,
        np.ascontiguousarray(weights),
        tokens,
        lengths,
        starts,
        most,
        stop,
        place,
        seed,
        following,
        out,
        missing,
    )
    return out[:found], None if missing[0] < 0 else int(missing[0])
