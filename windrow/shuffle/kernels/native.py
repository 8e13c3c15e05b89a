"""ctypes bindings of the C kernels, and the functions that move rows.

Those that compute positions are in `row_positions`, and those that divide steps in `step_bins`. Without a C compiler
`LIBRARY` is None, and the callers use NumPy or Python instead, with bit-identical results.

The C code trusts its arguments. So each function checks their types and sizes first, and raises
`ValueError` if they do not fit together. The contents of arrays are not checked: row numbers come from these
kernels, and the code that uses Arrow's offsets checks them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from windrow.core.column_memory import ColumnMemory
from windrow.core.native_libraries import Address, address_of, load_library
from windrow.shuffle.kernels.packed_rows import PackedRows

# Row numbers within a call have 32 bits.
MAX_ROWS = 2**32 - 1
# of a sequence that documents are placed into whole
MAX_CAPACITY = 2**24 - 1
_WIDTHS = (1, 2, 4, 8)
_RUN_TYPES = (np.uint16, np.uint32)
RunIds = NDArray[np.uint16 | np.uint32]

_POINTER, _INT, _WORD = Address, ctypes.c_int64, ctypes.c_uint64
_PACKED_ROWS = [_INT, _INT, _POINTER, _POINTER]
# a change of parameters gets a new function name, so that a stale library does not load
_FUNCTIONS: dict[str, tuple[list[Any], Any]] = {
    "windrow_range": ([_INT, _INT, _POINTER, _POINTER], None),
    "windrow_copy_packed": ([_INT, _POINTER, _INT, _POINTER], None),
    "windrow_copy_pieces": ([*[_INT] * 4, *[_POINTER] * 4], _INT),
    "windrow_number_pieces": ([_INT, *[_POINTER] * 3], None),
    "windrow_end_lists": ([_INT, _INT, *[_POINTER] * 4], None),
    "windrow_best_fit": ([_INT, _POINTER, _INT, *[_POINTER] * 4], _INT),
    "windrow_group_joined": ([*[_INT] * 3, *[_POINTER] * 4, *_PACKED_ROWS, _INT, *[_POINTER] * 2], _INT),
    "windrow_group": ([_INT, _INT, _POINTER, _INT, _INT, *[_POINTER] * 3], None),
    "windrow_assign": (
        [_INT, _POINTER, *[_INT] * 5, _POINTER, *[_INT] * 2, _POINTER, _INT, *[_POINTER] * 3],
        _INT,
    ),
    "windrow_assign_rounds": (
        [_INT, _POINTER, *[_INT] * 10, _POINTER, *[_INT] * 2, *[_POINTER] * 3],
        _INT,
    ),
    "windrow_scatter": ([_INT, _POINTER, *[_INT] * 3, _POINTER, _INT], None),
    "windrow_check_places": ([_INT, _POINTER, _POINTER, _INT, _POINTER], _INT),
    "windrow_place_run": (
        [_INT, *[_POINTER] * 3, _INT, _POINTER, _INT, _POINTER, _INT, *[_POINTER] * 3],
        _INT,
    ),
    "windrow_move_validity": ([_INT, *[_POINTER] * 4, _INT, _INT, _POINTER], _INT),
    "windrow_common_length": ([_INT, _INT, *[_POINTER] * 3], _INT),
    "windrow_checked_offsets": ([_INT, _INT, *[_POINTER] * 4, _INT, _INT, _POINTER], _INT),
    "windrow_scatter_rows": ([_INT, _INT, *[_POINTER] * 3, _INT, _INT, _POINTER], None),
    "windrow_move_ranges": (
        [_INT, _INT, _POINTER, _POINTER, _INT, _POINTER, _POINTER, _INT, _INT, _POINTER, _POINTER],
        None,
    ),
    "windrow_walk": ([_INT, _INT, _POINTER, _POINTER, ctypes.c_uint64, _INT, _INT, _POINTER], None),
    "windrow_rank": ([_INT, _INT, *[_POINTER] * 6], None),
    "windrow_balance_steps": ([_INT, _POINTER, *[_INT] * 4, *[_POINTER] * 6], None),
    "windrow_cut": ([*[_INT] * 6, *[_POINTER] * 9], _INT),
    "windrow_find_runs": ([_INT, _POINTER, _INT, _POINTER, _INT, *[_POINTER] * 3], None),
    "windrow_draw_sources": ([_INT, _POINTER, *[_INT] * 3, *[_POINTER] * 6], None),
    "windrow_share_tokens": ([_INT, *[_POINTER] * 4, *[_INT] * 3, _WORD, *[_POINTER] * 3], _INT),
    "windrow_number": ([_INT, *[_POINTER] * 3], None),
}
LIBRARY: Any = load_library("windrow.shuffle.kernels._kernels", _FUNCTIONS)


def _require(fits: bool, what: str) -> None:
    if not fits:
        raise ValueError(f"arguments of a kernel do not fit together: {what}")


def _is(array: NDArray[Any], kind: type[np.generic], *shape: int) -> bool:
    return array.dtype == kind and array.shape == shape


def scratch_bytes(width: int, rows: int, packed_rows: PackedRows | None) -> int:
    """The bytes of scratch memory for moving columns in a packed row layout, or one by one if that is None."""
    return rows * (width if packed_rows is None else packed_rows.row_bytes(rows))


def _layout_arguments(packed_rows: PackedRows | None, rows: int) -> tuple[Any, ...]:
    if packed_rows is None:
        return 0, 0, None, None
    return packed_rows.words, packed_rows.lanes(rows), packed_rows.starts, packed_rows.members


def find_range(values: NDArray[Any]) -> tuple[int, int]:
    """Minimum and maximum of one or more values of 1, 2, 4 or 8 bytes, as signed integers."""
    _require(values.ndim == 1 and len(values) > 0 and values.itemsize in _WIDTHS, "values")
    found = np.empty(2, np.int64)
    LIBRARY.windrow_range(values.itemsize, len(values), values, found)
    return int(found[0]), int(found[1])


def copy_out(
    columns: ColumnMemory, widths: NDArray[np.int64], rows: NDArray[np.int64], outs: NDArray[np.int64]
) -> None:
    """Copy columns whose rows are already in order to the map outputs.

    ``widths``, (columns,), are the bytes per row of each. ``rows`` has the rows of each map output, ``outs``, (columns,
    map outputs), the addresses to write to.
    """
    _require(rows.ndim == 1 and rows.dtype == np.int64, "rows")
    # there are few map outputs, and NumPy's reductions are code that is in no cache here
    counts: list[int] = rows.tolist()
    _require(min(counts, default=0) >= 0, "rows")
    columns.check(widths * sum(counts))
    _require(_is(outs, np.int64, len(widths), len(counts)) and outs.flags.c_contiguous, "outs")
    table = np.empty((len(widths), 3), np.int64)
    table[:, 0], table[:, 1] = columns.addresses, widths
    table[:, 2] = address_of(outs) + outs.strides[0] * np.arange(len(widths))
    LIBRARY.windrow_copy_packed(len(widths), table, len(counts), rows)


def copy_pieces(
    values: NDArray[Any],
    width: int,
    packing: tuple[int, int],
    firsts: NDArray[np.int64],
    counts: NDArray[np.int64],
    out: NDArray[np.uint8],
) -> bool:
    """Encode pieces of a column, one behind the other, by (bytes, base); returns False if a value does not fit.

    ``values`` have ``width`` bytes per row. ``firsts`` and ``counts``, (pieces,), are the first row of each and its
    rows.
    """
    pieces, rows = len(counts), values.nbytes // width
    _require(_is(firsts, np.int64, pieces) and _is(counts, np.int64, pieces), "pieces")
    _require(int(counts.min(initial=0)) >= 0 and int(firsts.min(initial=0)) >= 0, "pieces")
    _require(int((firsts + counts).max(initial=0)) <= rows, "pieces and values")
    _require(out.nbytes == int(counts.sum()) * packing[0] and values.flags.c_contiguous, "out")
    return not LIBRARY.windrow_copy_pieces(width, *packing, pieces, firsts, counts, values, out)


def number_pieces(places: NDArray[np.uint32], counts: NDArray[np.int64], out: NDArray[np.uint32]) -> None:
    """Write the places of the rows of pieces, given those of their first rows."""
    _require(_is(places, np.uint32, len(counts)) and _is(counts, np.int64, len(counts)), "places and counts")
    _require(int(counts.min(initial=0)) >= 0 and _is(out, np.uint32, int(counts.sum())), "out")
    LIBRARY.windrow_number_pieces(len(counts), places, counts, out)


def end_lists(values: NDArray[Any], counts: NDArray[np.int64], end: NDArray[Any], out: NDArray[Any]) -> None:
    """Copy lists that lie end to end, with the value ``end`` behind each that is not empty."""
    lists = len(counts)
    _require(_is(counts, np.int64, lists) and int(counts.min(initial=0)) >= 0, "counts")
    _require(values.ndim == 1 and values.flags.c_contiguous and len(values) == int(counts.sum()), "values")
    _require(values.dtype == end.dtype == out.dtype and end.size == 1, "end")
    _require(len(out) == len(values) + int(np.count_nonzero(counts)), "out")
    LIBRARY.windrow_end_lists(values.itemsize, lists, counts, values, end, out)


def best_fit(sizes: NDArray[np.int32], capacity: int) -> tuple[NDArray[np.int32], int]:
    """(documents,) the sequence of each document, and the number of sequences; as `windrow.shuffle.order.best_fit`."""
    _require(_is(sizes, np.int32, len(sizes)) and len(sizes) < 2**31, "sizes")
    _require(0 < capacity <= MAX_CAPACITY, "capacity")
    _require(int(sizes.min(initial=1)) > 0 and int(sizes.max(initial=1)) <= capacity, "sizes")
    found, following = np.empty(len(sizes), np.int32), np.empty(len(sizes), np.int32)
    heads = np.full(capacity + 1, -1, np.int32)
    # all levels together have less than twice the words of the first one, and a word each
    bits = np.zeros(2 * (capacity // 64 + 1) + 4, np.uint64)
    return found, LIBRARY.windrow_best_fit(len(sizes), sizes, capacity, heads, following, bits, found)


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
    """Scatter and pack: row i of each column goes to row ``targets[i]`` of its concatenated map outputs.

    ``targets`` is a permutation of the row numbers. ``columns`` are contiguous and have equal shapes, with
    ``width`` bytes per row. ``packing`` has (bytes, base) of each, ``rows`` the rows of each map output, and
    ``outs``, (columns, map outputs), the addresses to write to. ``scratch`` has at least `scratch_bytes`.
    Without ``packed_rows`` columns are moved one by one. Returns the index of a column whose values do not
    fit its packing; the output is then incomplete.
    """
    count = len(targets)
    _require(all(len(column) == count and column.nbytes == width * count for column in columns), "columns")
    _require(_is(targets, np.uint32, count) and len(packing) == len(columns), "targets")
    _require(scratch.nbytes >= scratch_bytes(width, count, packed_rows), "scratch")
    _require(_is(rows, np.int64, len(rows)) and int(rows.sum()) <= count, "rows")
    _require(_is(outs, np.int64, len(columns), len(rows)), "outs")
    sources = np.array([address_of(column) for column in columns], np.int64)
    packed, layout = np.array(packing, np.int64), _layout_arguments(packed_rows, count)
    overflow: int = LIBRARY.windrow_group_joined(
        len(columns), width, count, sources, packed, targets, scratch, *layout, len(rows), rows, outs
    )
    return None if overflow < 0 else overflow


def group(runs: RunIds, first: int, last: int) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Sort entries by run, stably.

    Returns (entries,) the rank of each entry, entries of runs outside [first, last) last; and (last - first +
    1,) the rank of the first entry of each run, then the end.
    """
    _require(runs.ndim == 1 and runs.dtype in _RUN_TYPES and len(runs) <= MAX_ROWS, "runs")
    _require(0 <= first <= last, "first and last")
    targets = np.empty(len(runs), np.uint32)
    starts, following = np.empty(last - first + 1, np.int64), np.empty(last - first + 1, np.int64)
    LIBRARY.windrow_group(runs.itemsize, len(runs), runs, first, last - first, targets, starts, following)
    return targets, starts


def check_places(places: NDArray[np.int64], counts: NDArray[np.int64], rows: int) -> bool:
    """Whether the places at these addresses are exactly 0 to ``rows - 1``, each once."""
    _require(_is(places, np.int64, len(counts)) and _is(counts, np.int64, len(counts)), "places and counts")
    seen = np.empty(rows, np.uint8)
    distinct = LIBRARY.windrow_check_places(len(counts), places, counts, rows, seen)
    return bool(distinct == rows)


class PlacedColumns(NamedTuple):
    """Columns of one width that `place` scatters and unpacks.

    ``sources``, (columns, parts, 3), has for each column of each part its address, packed bytes per value, and base.
    Without ``scratch``, of at least `scratch_bytes`, rows are scattered directly to ``outs``, the output array of
    each column. Without ``packed_rows`` columns are moved one by one.
    """

    sources: NDArray[np.int64]
    scratch: NDArray[np.uint8] | None
    outs: Sequence[NDArray[Any]]
    packed_rows: PackedRows | None


def place(
    firsts: NDArray[np.int64],
    places: NDArray[np.int64],
    counts: NDArray[np.int64],
    rows: int,
    groups: Sequence[PlacedColumns],
    bits: NDArray[np.int64] | None = None,
    masks: Sequence[NDArray[np.uint8]] = (),
    *,
    checks: bool,
) -> list[int] | None:
    """Put the rows of all parts at their places, in one call for all columns.

    ``firsts``, ``places`` and ``counts``, (parts,), have the first row to use of each part, the address of the places
    of these rows, and their number. ``bits`` and ``masks`` are as for `move_validity`, of several columns: (columns,
    parts) addresses, and the output of each. With ``checks``, None is returned, and nothing is moved, unless the
    places are 0 to ``rows - 1``, each once. Otherwise the nulls of each mask are.
    """
    parts, nullable = len(counts), len(masks)
    for each in (firsts, places, counts):
        _require(_is(each, np.int64, parts), "firsts, places and counts")
    # the arrays that hold addresses are kept until the call is done
    held, table = [], []
    for sources, scratch, outs, packed_rows in groups:
        nbytes = outs[0].nbytes
        width = nbytes // max(1, rows)
        _require(_is(sources, np.int64, len(outs), parts, 3) and sources.flags.c_contiguous, "sources")
        _require(not [out for out in outs if len(out) != rows or out.nbytes != nbytes], "outs")
        _require(scratch is None or scratch.nbytes >= scratch_bytes(width, rows, packed_rows), "scratch")
        addresses = np.array([address_of(out) for out in outs], np.int64)
        words, lanes, *layout = _layout_arguments(packed_rows, rows)
        starts, members = (0 if each is None else address_of(each) for each in layout)
        at = 0 if scratch is None else address_of(scratch)
        held.append(addresses)
        table += [
            len(outs),
            width,
            address_of(sources),
            at,
            words,
            lanes,
            starts,
            members,
            address_of(addresses),
        ]
    _require(bits is None or _is(bits, np.int64, nullable, parts), "bits")
    _require((bits is None) == (not nullable), "bits and masks")
    for mask in masks:
        _require(_is(mask, np.uint8, -(-rows // 8)), "masks")
    outs_of_masks, nulls = (
        np.array([address_of(mask) for mask in masks], np.int64),
        np.empty(nullable, np.int64),
    )
    seen = np.empty(rows, np.uint8) if checks else None
    joined = np.array(table, np.int64)
    are_right = LIBRARY.windrow_place_run(
        parts, firsts, places, counts, rows, seen, len(groups), joined, nullable, bits, outs_of_masks, nulls
    )
    return nulls.tolist() if are_right else None


def move_validity(
    bits: NDArray[np.int64],
    firsts: NDArray[np.int64],
    places: NDArray[np.int64],
    counts: NDArray[np.int64],
    rows: slice,
    out: NDArray[np.uint8],
) -> int:
    """Put validity bits of all parts at their places; returns the number of nulls.

    ``bits``, (parts,), has the address of the bits of each part, 0 for a part without nulls; the next three are as
    for `place`. Places outside the range ``rows`` are dropped, and its first one becomes bit 0 of ``out``.
    """
    parts = len(counts)
    _require(all(_is(each, np.int64, parts) for each in (bits, firsts, places)), "bits, firsts and places")
    count = rows.stop - rows.start
    _require(_is(out, np.uint8, -(-count // 8)), "out")
    return int(LIBRARY.windrow_move_validity(parts, bits, firsts, places, counts, rows.start, count, out))
