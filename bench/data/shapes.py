"""Tables of unusual shapes: very wide, very narrow, and mostly text."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from bench.data.draws import draw_integers, draw_raw, draw_unit

__all__ = ["NARROW_ROW_BYTES", "TEXT_ROW_BYTES", "WIDE_ROW_BYTES", "make_narrow", "make_text", "make_wide"]

_WIDE_COLUMNS = 1_000
_TEXT_COLUMNS = 5
_WORDS = [f"word {number:05d} {'.' * (number % 30)}" for number in range(5_000)]
WIDE_ROW_BYTES = 8 + 4 * _WIDE_COLUMNS
NARROW_ROW_BYTES = 16
TEXT_ROW_BYTES = 8 + _TEXT_COLUMNS * (4 + 26)


def make_wide(first_row: int, rows: int, group: int, seed: int) -> pa.Table:
    """A key and a thousand float columns."""
    floats = {
        f"float{number}": draw_unit(draw_raw(seed, group, number, rows)).astype(np.float32)
        for number in range(_WIDE_COLUMNS)
    }
    return pa.table({"key": np.arange(first_row, first_row + rows, dtype=np.int64), **floats})


def make_narrow(first_row: int, rows: int, group: int, seed: int) -> pa.Table:
    """A key and one double."""
    value = draw_unit(draw_raw(seed, group, 0, rows))
    return pa.table({"key": np.arange(first_row, first_row + rows, dtype=np.int64), "value": value})


def make_text(first_row: int, rows: int, group: int, seed: int) -> pa.Table:
    """A key and five columns of 11 to 40 letters."""
    words = pa.array(_WORDS)
    texts = {
        f"text{number}": words.take(pa.array(draw_integers(draw_raw(seed, group, number, rows), len(_WORDS))))
        for number in range(_TEXT_COLUMNS)
    }
    return pa.table({"key": np.arange(first_row, first_row + rows, dtype=np.int64), **texts})
