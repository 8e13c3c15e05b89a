"""The compiled kernels, where the package was built with a C compiler.

``_kernels.c`` holds them. Without it `LIBRARY` is None, and the callers do the same with
NumPy; the results are equal bit for bit.

C trusts what it is given. So each function here checks the types and sizes of its arguments first,
and raises `ValueError` where they do not fit together; what arrays contain it takes as given. Row numbers
are made by these kernels themselves, and Arrow's offsets are checked where they are used.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windrow.core.native_libraries import address_of, load_library
from windrow.shuffle.kernels.packed_rows import PackedRows

__all__ = [
    "LIBRARY",
    "MAX_ROWS",
    "assign",
    "check_places",
    "copy_out",
    "find_range",
    "group",
    "group_columns",
    "place",
    "scratch_bytes",
    "walk",
]

# Rows of one call are numbered with 32 bits.
MAX_ROWS = 2**32 - 1
_WIDTHS = (1, 2, 4, 8)
# ROUNDS in C
_ROUNDS = 6
_RUN_TYPES = (np.uint16, np.uint32)

_POINTER, _INT = ctypes.c_void_p, ctypes.c_int64
_PACKED_ROWS = [_INT, _INT, _POINTER, _POINTER]
# a library that was built for other parameters is known by its names
_FUNCTIONS: dict[str, tuple[list[Any], Any]] = {
    "windrow_range": ([_INT, _INT, _POINTER, _POINTER], None),
    "windrow_copy_packed": ([_INT, _POINTER, _INT, _POINTER], None),
    "windrow_group_joined": ([*[_INT] * 3, *[_POINTER] * 4, *_PACKED_ROWS, _INT, *[_POINTER] * 2], _INT),
    "windrow_group": ([_INT, _INT, _POINTER, _INT, _INT, *[_POINTER] * 3], None),
    "windrow_assign": (
        [_INT, _POINTER, *[_INT] * 5, _POINTER, *[_INT] * 2, _POINTER, _INT, *[_POINTER] * 3],
        _INT,
    ),
    "windrow_check_places": ([_INT, _POINTER, _POINTER, _INT, _POINTER], _INT),
    "windrow_place_joined": ([_INT, *[_POINTER] * 4, *[_INT] * 3, _POINTER, *_PACKED_ROWS, _POINTER], None),
    "windrow_checked_offsets": ([_INT, _INT, *[_POINTER] * 4, _INT, _INT, _POINTER], _INT),
    "windrow_text": ([_INT, _INT, *[_POINTER] * 4, _INT, _INT, _POINTER, _POINTER], None),
    "windrow_walk": ([_INT, _INT, _POINTER, _POINTER, ctypes.c_uint64, _INT, _INT, _POINTER], None),
}
LIBRARY: Any = load_library("windrow.shuffle.kernels._kernels", _FUNCTIONS)


def _require(fits: bool, what: str) -> None:
    if not fits:
        raise ValueError(f"arguments of a kernel do not fit together: {what}")


def _is(array: NDArray[Any], kind: type[np.generic], *shape: int) -> bool:
    return array.dtype == kind and array.shape == shape


def scratch_bytes(width: int, rows: int, packed_rows: PackedRows | None) -> int:
    """The memory by way of which columns go: joined to words as told, or each by itself."""
    return rows * (width if packed_rows is None else packed_rows.row_bytes(rows))


def _layout_arguments(packed_rows: PackedRows | None, rows: int) -> tuple[int, int, int | None, int | None]:
    if packed_rows is None:
        return 0, 0, None, None
    return (
        packed_rows.words,
        packed_rows.lanes(rows),
        address_of(packed_rows.starts),
        address_of(packed_rows.members),
    )


def find_range(words: NDArray[Any]) -> tuple[int, int]:
    """The least and the largest of at least one word of 1, 2, 4 or 8 bytes, as signed numbers."""
    _require(words.ndim == 1 and len(words) > 0 and words.itemsize in _WIDTHS, "words")
    found = np.empty(2, np.int64)
    LIBRARY.windrow_range(words.itemsize, len(words), address_of(words), address_of(found))
    return int(found[0]), int(found[1])


def copy_out(
    columns: Sequence[NDArray[np.uint8]],
    widths: Sequence[int],
    rows: NDArray[np.int64],
    outs: Sequence[NDArray[np.int64]],
) -> None:
    """Give each piece its words of columns whose rows lie in order, and take so many bytes."""
    total, each_column = int(rows.sum()), list(zip(columns, widths, outs, strict=True))
    _require(rows.ndim == 1 and rows.dtype == np.int64 and bool((rows >= 0).all()), "rows")
    _require(all(words.nbytes >= total * width for words, width, _ in each_column), "columns")
    _require(all(_is(out, np.int64, len(rows)) for out in outs), "outs")
    each = np.array(
        [(address_of(words), width, address_of(out)) for words, width, out in each_column], np.int64
    )
    LIBRARY.windrow_copy_packed(len(columns), address_of(each), len(rows), address_of(rows))


def group_columns(
    columns: Sequence[NDArray[Any]],
    width: int,
    packing: Sequence[tuple[int, int]],
    targets: NDArray[np.uint32],
    scratch: NDArray[np.uint8],
    rows: NDArray[np.int64],
    outs: NDArray[np.int64],
    packed_rows: PackedRows | None,
) -> int | None:
    """Put row i of each column at row ``targets[i]`` of its pieces laid end to end.

    Parameters
    ----------
    columns
        Contiguous, of equal shape, with ``width`` bytes a row.
    packing
        For each the bytes that its words travel in, and what is to be taken from each.
    targets
        (rows,) ranks.
    scratch
        Memory as `scratch_bytes` says.
    rows
        Of each piece.
    outs
        (columns, pieces) the addresses of the pieces.
    joint
        How columns of this packing are joined to words; None to move each by itself.

    Returns
    -------
    int or None
        Which column needs more bytes than its packing has; the pieces may be half written then.
    """
    count = len(targets)
    _require(all(len(column) == count and column.nbytes == width * count for column in columns), "columns")
    _require(_is(targets, np.uint32, count) and len(packing) == len(columns), "targets")
    _require(scratch.nbytes >= scratch_bytes(width, count, packed_rows), "scratch")
    _require(_is(rows, np.int64, len(rows)) and int(rows.sum()) <= count, "rows")
    _require(_is(outs, np.int64, len(columns), len(rows)), "outs")
    sources = np.array([address_of(column) for column in columns], np.int64)
    packed = np.array(packing, np.int64)
    overflow: int = LIBRARY.windrow_group_joined(
        len(columns),
        width,
        len(targets),
        address_of(sources),
        address_of(packed),
        address_of(targets),
        address_of(scratch),
        *_layout_arguments(packed_rows, len(targets)),
        len(rows),
        address_of(rows),
        address_of(outs),
    )
    return None if overflow < 0 else overflow


def group(
    runs: NDArray[np.uint16 | np.uint32], first: int, last: int
) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Sort entries by run, stably.

    Returns
    -------
    targets, starts
        (entries,) the rank of each entry, those of runs outside [first, last) coming
        last; and (last - first + 1,) the rank at which each run begins.
    """
    _require(runs.ndim == 1 and runs.dtype in _RUN_TYPES and len(runs) <= MAX_ROWS, "runs")
    _require(0 <= first <= last, "first and last")
    targets = np.empty(len(runs), np.uint32)
    starts, following = np.empty(last - first + 1, np.int64), np.empty(last - first + 1, np.int64)
    LIBRARY.windrow_group(
        runs.itemsize,
        len(runs),
        address_of(runs),
        first,
        last - first,
        address_of(targets),
        address_of(starts),
        address_of(following),
    )
    return targets, starts


def assign(
    rows: NDArray[np.int64],
    first_row: int,
    stop_row: int,
    divisors: tuple[int, int, int],
    shards: NDArray[np.int64],
    ids: NDArray[np.uint16 | np.uint32],
    none: int,
) -> tuple[NDArray[np.uint16 | np.uint32], NDArray[np.uint32], NDArray[np.uint32]]:
    """Find the runs of rows of the epoch's order, all of them below 2^32.

    Parameters
    ----------
    rows
        (rows,) numbers in the epoch's order.
    first_row, stop_row
        The full steps of the deal.
    divisors
        Rows of a step, of a batch and of a run, each at least 1 and below 2^32.
    shards
        (n, 3) of at least each shard: what to add to a run's number in its stream to get to its id, the first
        of its runs here, and how many rows of that came before.
    ids
        Of runs.
    none
        The id of rows whose run has none.

    Returns
    -------
    runs, places, rest
        (rows,) the id of each row's run, and its place there; and the entries of ``rows`` that lie
        outside of the full steps, whose runs and places are not set.
    """
    _require(_is(rows, np.int64, len(rows)) and len(rows) <= MAX_ROWS, "rows")
    _require(all(1 <= each <= MAX_ROWS for each in divisors), "divisors")
    last_shard = (min(divisors[0], stop_row - first_row) - 1) // divisors[1]
    _require(_is(shards, np.int64, len(shards), 3) and last_shard < len(shards), "shards")
    _require(ids.ndim == 1 and ids.dtype in _RUN_TYPES, "ids")
    runs, places = np.empty(len(rows), ids.dtype), np.empty(len(rows), np.uint32)
    rest = np.empty(len(rows), np.uint32)
    others = LIBRARY.windrow_assign(
        len(rows),
        address_of(rows),
        first_row,
        stop_row,
        *divisors,
        address_of(shards),
        ids.itemsize,
        len(ids),
        address_of(ids),
        none,
        address_of(runs),
        address_of(places),
        address_of(rest),
    )
    return runs, places, rest[:others]


def check_places(places: NDArray[np.int64], counts: NDArray[np.int64], rows: int) -> bool:
    """Whether the places at these addresses are all of [0, rows), each once."""
    _require(_is(places, np.int64, len(counts)) and _is(counts, np.int64, len(counts)), "places and counts")
    seen = np.empty(rows, np.uint8)
    distinct = LIBRARY.windrow_check_places(
        len(counts), address_of(places), address_of(counts), rows, address_of(seen)
    )
    return bool(distinct == rows)


def place(
    sources: NDArray[np.int64],
    firsts: NDArray[np.int64],
    places: NDArray[np.int64],
    counts: NDArray[np.int64],
    scratch: NDArray[np.uint8] | None,
    outs: Sequence[NDArray[Any]],
    packed_rows: PackedRows | None,
) -> None:
    """Put the rows of all parts in their places.

    Parameters
    ----------
    sources
        (columns, parts, 3) where each column of a part begins, the bytes that its words take
        there, and what is to be added to each.
    firsts
        (parts,) the first row of each part that is meant.
    places, counts
        (parts,) the address of the places of its rows, and how many there are.
    scratch
        Memory as `scratch_bytes` says; None to write each row where it goes at once.
    outs
        Where each column goes.
    joint
        How columns are joined to words, whose bytes hold what every part has of them; None to move
        each by itself.
    """
    rows, parts = len(outs[0]), len(counts)
    _require(_is(sources, np.int64, len(outs), parts, 3), "sources")
    _require(
        all(_is(each, np.int64, parts) for each in (firsts, places, counts)), "firsts, places and counts"
    )
    _require(all((len(out), out.nbytes) == (rows, outs[0].nbytes) for out in outs), "outs")
    width = outs[0].nbytes // max(1, rows)
    _require(scratch is None or scratch.nbytes >= scratch_bytes(width, rows, packed_rows), "scratch")
    addresses = np.array([address_of(out) for out in outs], np.int64)
    LIBRARY.windrow_place_joined(
        len(counts),
        address_of(sources),
        address_of(firsts),
        address_of(places),
        address_of(counts),
        len(outs),
        width,
        rows,
        None if scratch is None else address_of(scratch),
        *_layout_arguments(packed_rows, rows),
        address_of(addresses),
    )


def walk(
    bits: int, keys: Sequence[int], multipliers: Sequence[int], size: int, start: int, stop: int
) -> NDArray[np.int64]:
    """Positions of rows under the rounds of `windrow.shuffle.order.feistel_rounds`, with cycle walking."""
    _require(
        len(keys) == len(multipliers) == _ROUNDS and 0 <= start <= stop, "keys, multipliers, start and stop"
    )
    _require(0 < bits <= 63 and 0 < size <= 2**bits, "bits and size")
    out = np.empty(stop - start, np.int64)
    words = np.array([keys, multipliers], np.uint64)
    LIBRARY.windrow_walk(
        bits,
        (bits + 1) // 2,
        address_of(words[0]),
        address_of(words[1]),
        size - 1,
        start,
        stop - start,
        address_of(out),
    )
    return out
