"""Deterministic tables: recommendation data, taxi trips, wide, narrow and textual ones.

NumPy guarantees stable bit generators but not stable ``Generator`` methods, so only raw Philox output is used and
converted here: random numbers do not change with library versions.

``dlrm`` has the columns of Ray's shuffling data loader benchmark: 20 int64 columns and a double label, 168 bytes a
row. The keys are 0 .. rows - 1 in stored order. The label depends on three of the columns, so that a model can learn
it.
``taxi`` is like the New York taxi trips: timestamps, doubles and short strings, sorted by time.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

_EMBEDDINGS = "2385 201 201 6 19 1441 201 22 156 1216 9216 88999 941792 9405 83332 828767 945195"
_SIGNAL_COLUMNS = ("embeddings_name3", "embeddings_name4", "one_hot0")
TAXI_ROW_BYTES = 151  # 16 columns of 8 bytes; three strings of 4 to 13 bytes with their offsets
_FIRST_PICKUP_US = 1_672_531_200_000_000  # 2023-01-01
_MEAN_GAP_US = 810_000
_VENDORS = ("CMT", "VTS", "DDS")
_FLAGS = ("N", "N", "N", "N", "N", "N", "N", "Y")
_PAYMENTS = ("card", "card", "card", "card", "cash", "cash", "no charge", "dispute")
_WIDE_COLUMNS = 1_000
_TEXT_COLUMNS = 5
WIDE_ROW_BYTES = 8 + 4 * _WIDE_COLUMNS
NARROW_ROW_BYTES = 16
TEXT_ROW_BYTES = 8 + _TEXT_COLUMNS * (4 + 26)


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


def make_taxi(first_row: int, rows: int, group: int, seed: int) -> pa.Table:
    raw = [draw_raw(seed, group, number, rows) for number in range(14)]
    key = np.arange(first_row, first_row + rows, dtype=np.int64)
    seconds = 60 + (-np.log1p(-draw_unit(raw[1])) * 720).astype(np.int64)
    pickup = _FIRST_PICKUP_US + key * _MEAN_GAP_US + draw_integers(raw[0], 60_000_000)
    distance = _cents(seconds / 3600 * (6 + 24 * draw_unit(raw[2])))
    amounts = _amounts(distance, seconds, raw[3:8])
    return pa.table(
        {
            "key": key,
            "vendor_id": _strings(_VENDORS, raw[8]),
            "pickup_at": pa.array(pickup, pa.timestamp("us")),
            "dropoff_at": pa.array(pickup + seconds * 1_000_000, pa.timestamp("us")),
            "passenger_count": 1 + draw_integers(raw[9], 6) * (raw[9] % np.uint64(3) == 0),
            "trip_distance": distance,
            "rate_code": 1 + draw_integers(raw[10], 6) * (raw[10] % np.uint64(16) == 0),
            "store_and_forward": _strings(_FLAGS, raw[11]),
            "pickup_zone": 1 + draw_integers(raw[12], 263),
            "dropoff_zone": 1 + draw_integers(raw[13], 263),
            "payment_type": _strings(_PAYMENTS, raw[11] << np.uint64(8)),
            **amounts,
        }
    )


def _amounts(
    distance: NDArray[np.float64], seconds: NDArray[np.int64], raw: list[NDArray[np.uint64]]
) -> dict[str, NDArray[np.float64]]:
    fare = _cents(3 + 1.75 * distance + seconds / 110)
    parts = {
        "fare_amount": fare,
        "extra": draw_integers(raw[0], 4) * 0.5,
        "mta_tax": np.full(len(fare), 0.5),
        "tip_amount": _cents(fare * draw_unit(raw[1]) * 0.4),
        "tolls_amount": 6.55 * (raw[2] % np.uint64(20) == 0),
        "improvement_surcharge": 0.3 + 0.7 * (raw[3] % np.uint64(2) == 0),
        "congestion_surcharge": 2.5 * (raw[4] % np.uint64(4) != 0),
    }
    total = np.asarray(sum(parts.values()), dtype=np.float64)
    return {**parts, "total_amount": _cents(total)}


def _cents(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.round(values, 2)


def _strings(values: tuple[str, ...], raw: NDArray[np.uint64]) -> pa.Array:
    return pa.array(values, pa.string()).take(pa.array(draw_integers(raw, len(values))))


_WORDS = [f"word {number:05d} {'.' * (number % 30)}" for number in range(5_000)]


def make_wide(first_row: int, rows: int, group: int, seed: int) -> pa.Table:
    floats = {
        f"float{number}": draw_unit(draw_raw(seed, group, number, rows)).astype(np.float32)
        for number in range(_WIDE_COLUMNS)
    }
    return pa.table({"key": np.arange(first_row, first_row + rows, dtype=np.int64), **floats})


def make_narrow(first_row: int, rows: int, group: int, seed: int) -> pa.Table:
    value = draw_unit(draw_raw(seed, group, 0, rows))
    return pa.table({"key": np.arange(first_row, first_row + rows, dtype=np.int64), "value": value})


def make_text(first_row: int, rows: int, group: int, seed: int) -> pa.Table:
    words = pa.array(_WORDS)
    texts = {
        f"text{number}": words.take(pa.array(draw_integers(draw_raw(seed, group, number, rows), len(_WORDS))))
        for number in range(_TEXT_COLUMNS)
    }
    return pa.table({"key": np.arange(first_row, first_row + rows, dtype=np.int64), **texts})
