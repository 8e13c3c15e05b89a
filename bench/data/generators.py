"""Deterministic recommendation data, and the random numbers of all generated data.

NumPy guarantees stable bit generators but not stable ``Generator`` methods, so only raw Philox output is used and
converted here: random numbers do not change with library versions.

``dlrm`` has the columns of Ray's shuffling data loader benchmark: 20 int64 columns and a double label, 168 bytes a
row. The keys are 0 .. rows - 1 in stored order. The label depends on three of the columns, so that a model can learn
it.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

_EMBEDDINGS = "2385 201 201 6 19 1441 201 22 156 1216 9216 88999 941792 9405 83332 828767 945195"
_SIGNAL_COLUMNS = ("embeddings_name3", "embeddings_name4", "one_hot0")


def draw_raw(seed: int, group: int, column: int, count: int) -> NDArray[np.uint64]:
    """Draw 64-bit words; each (seed, row group, column) has a separate stream."""
    key = (seed & 0xFFFFFFFF) << 96 | group << 32 | column
    return np.asarray(np.random.Philox(key=key).random_raw(count), dtype=np.uint64)


def draw_integers(raw: NDArray[np.uint64], high: int) -> NDArray[np.int64]:
    """Map words to integers in ``[0, high)``, high below 2**32."""
    return ((raw >> np.uint64(32)) * np.uint64(high) >> np.uint64(32)).astype(np.int64)


def draw_unit(raw: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Map words to doubles in ``[0, 1)``."""
    return (raw >> np.uint64(11)).astype(np.float64) * 2.0**-53


CARDINALITIES = {
    **{f"embeddings_name{number}": high for number, high in enumerate(map(int, _EMBEDDINGS.split()))},
    "one_hot0": 3,
    "one_hot1": 50,
}
DLRM_ROW_BYTES = 8 * (len(CARDINALITIES) + 2)


def make_dlrm(first_row: int, rows: int, group: int, seed: int) -> pa.Table:
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
