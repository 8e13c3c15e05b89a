"""Data like the New York taxi trips: timestamps, doubles and short strings, sorted by time."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bench.data.draws import draw_integers, draw_raw, draw_unit

__all__ = ["ROW_BYTES", "make_group"]

ROW_BYTES = 151  # 16 columns of 8 bytes; three strings of 4 to 13 bytes with their offsets
_FIRST_PICKUP_US = 1_672_531_200_000_000  # 2023-01-01
_MEAN_GAP_US = 810_000
_VENDORS = ("CMT", "VTS", "DDS")
_FLAGS = ("N", "N", "N", "N", "N", "N", "N", "Y")
_PAYMENTS = ("card", "card", "card", "card", "cash", "cash", "no charge", "dispute")


def make_group(first_row: int, rows: int, group: int, seed: int) -> pa.Table:
    """Make the rows of one row group."""
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
