"""Recommendation data with the columns of Ray's shuffling data loader benchmark.

20 int64 columns and a double label, 168 bytes per row. The keys are 0 .. rows - 1 in
stored order. The label depends on three of the columns, so that a model can learn it.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bench.data.draws import draw_integers, draw_raw, draw_unit

__all__ = ["CARDINALITIES", "ROW_BYTES", "make_group"]

_EMBEDDINGS = (
    2385,
    201,
    201,
    6,
    19,
    1441,
    201,
    22,
    156,
    1216,
    9216,
    88999,
    941792,
    9405,
    83332,
    828767,
    945195,
)
CARDINALITIES = {
    **{f"embeddings_name{number}": high for number, high in enumerate(_EMBEDDINGS)},
    "one_hot0": 3,
    "one_hot1": 50,
}
ROW_BYTES = 8 * (len(CARDINALITIES) + 2)
_SIGNAL_COLUMNS = ("embeddings_name3", "embeddings_name4", "one_hot0")


def make_group(first_row: int, rows: int, group: int, seed: int) -> pa.Table:
    """Make the rows of one row group."""
    columns: dict[str, NDArray[np.generic]] = {"key": np.arange(first_row, first_row + rows, dtype=np.int64)}
    for number, (name, high) in enumerate(CARDINALITIES.items()):
        columns[name] = draw_integers(draw_raw(seed, group, number, rows), high)
    noise = draw_unit(draw_raw(seed, group, len(CARDINALITIES), rows))
    columns["labels"] = noise / 2 + _signal(columns)
    return pa.table(columns)


def _signal(columns: dict[str, NDArray[np.generic]]) -> NDArray[np.float64]:
    """A part of the label in [0, 0.5) that the columns determine."""
    weights = [
        np.modf((columns[name].astype(np.float64) + 1) * 0.6180339887498949)[0] for name in _SIGNAL_COLUMNS
    ]
    return np.asarray(sum(weights) / (2 * len(weights)), dtype=np.float64)
