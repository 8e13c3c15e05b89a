"""Golden orders of complete pipelines: a guarantee, not a snapshot.

A pipeline delivers this order to every reader: on any executor, with any workers, memory and library
versions, and after any upgrade of windrow. If a test here fails, the change is wrong, whatever it
improves. A better order needs a new ``ORDER_VERSION`` in addition to this one, with its own golden orders.
"""

from __future__ import annotations

import hashlib
import json

import pytest

from tests.laws.cases import Case
from tests.laws.reading import read_shards
from windrow.pipeline.executors.threads import ThreadsExecutor
from windrow.shuffle.order.epoch_plan import WindowCut

SIZES = (7, 0, 1, 12, 5, 3)
SHORT: dict[str, tuple[Case, list[list[list[int]]]]] = {
    "one window, two epochs": (
        Case(SIZES, seed=7, epochs=2),
        [
            [
                [
                    16,
                    20,
                    26,
                    9,
                    0,
                    17,
                    11,
                    8,
                    25,
                    19,
                    3,
                    4,
                    13,
                    21,
                    5,
                    7,
                    1,
                    2,
                    27,
                    24,
                    12,
                    15,
                    18,
                    23,
                    10,
                    14,
                    22,
                    6,
                ],
                [
                    17,
                    13,
                    21,
                    18,
                    1,
                    8,
                    4,
                    27,
                    16,
                    26,
                    25,
                    11,
                    3,
                    22,
                    23,
                    24,
                    7,
                    20,
                    10,
                    14,
                    12,
                    9,
                    0,
                    5,
                    2,
                    6,
                    15,
                    19,
                ],
            ]
        ],
    ),
    "two blocks a window, two shards": (
        Case(SIZES, WindowCut(blocks_per_window=2), seed=7, shards=2, batch_rows=4),
        [
            [[20, 23, 24, 25, 5, 6, 0, 4, 11, 19, 16, 12, 17, 13]],
            [[27, 21, 22, 26, 1, 3, 7, 2, 15, 8, 9, 18, 10, 14]],
        ],
    ),
    "windows of bytes, two epochs": (
        Case(SIZES, WindowCut(bytes_per_window=130), seed=0, epochs=2),
        [
            [
                [
                    4,
                    25,
                    0,
                    26,
                    1,
                    5,
                    6,
                    2,
                    3,
                    27,
                    20,
                    23,
                    12,
                    13,
                    11,
                    8,
                    9,
                    16,
                    17,
                    21,
                    7,
                    19,
                    14,
                    10,
                    22,
                    15,
                    18,
                    24,
                ],
                [
                    13,
                    9,
                    5,
                    1,
                    17,
                    10,
                    16,
                    11,
                    12,
                    4,
                    14,
                    0,
                    19,
                    15,
                    6,
                    8,
                    2,
                    3,
                    18,
                    21,
                    25,
                    22,
                    26,
                    23,
                    27,
                    7,
                    24,
                    20,
                ],
            ]
        ],
    ),
    "a filter, padded": (
        Case(
            (20,) * 4,
            WindowCut(blocks_per_window=2),
            seed=-1,
            shards=3,
            batch_rows=2,
            equal="pad",
            change="filtered",
        ),
        [[[40, 1, 46, 43, 61, 22]], [[49, 4, 64, 25, 28, 70]], [[7, 10, 31, 67, 61, 22]]],
    ),
    "rows dropped by a transform": (
        Case((20,) * 4, WindowCut(blocks_per_window=1), seed=2**70, change="dropped"),
        [[[46, 40, 49, 43, 7, 1, 10, 4, 61, 70, 67, 64, 22, 28, 25, 31]]],
    ),
    "no shuffle, equal shards": (
        Case(SIZES, WindowCut(blocks_per_window=2), seed=None, shards=3, batch_rows=3, equal=True),
        [
            [[0, 1, 2, 9, 10, 11, 18, 19, 20]],
            [[3, 4, 5, 12, 13, 14, 21, 22, 23]],
            [[6, 7, 8, 15, 16, 17, 24, 25, 26]],
        ],
    ),
}
LONG: dict[str, tuple[Case, str]] = {
    "a window of 70,000 rows": (
        Case((10_000,) * 7, seed=7),
        "e597db20ea2e249adc6e1682699eaeb263b8f2c09b6cfb436c6f181e27c91256",
    ),
    "windows of bytes, three epochs": (
        Case(
            tuple(range(0, 400, 7)),
            WindowCut(bytes_per_window=20_000),
            seed=12,
            epochs=3,
            shards=2,
            batch_rows=32,
        ),
        "298cdb9f9511d1ecd23ee570b770d95dfc388aa1dd1409c418bb0b3f538a1f5f",
    ),
}


def read(case: Case) -> list[list[list[int]]]:
    """[shard][epoch] -> rows."""
    readings = read_shards(case, ThreadsExecutor(2))
    return [[[x for batch in epoch for x in batch] for epoch in reading.epochs] for reading in readings]


@pytest.mark.parametrize("name", SHORT)
def test_short_pipelines(name: str) -> None:
    case, golden = SHORT[name]
    assert read(case) == golden


@pytest.mark.parametrize("name", LONG)
def test_long_pipelines(name: str) -> None:
    case, golden = LONG[name]
    text = json.dumps(read(case), separators=(",", ":"))
    assert hashlib.sha256(text.encode()).hexdigest() == golden


def test_golden_orders_match_the_reference() -> None:
    for case, golden in SHORT.values():
        assert golden == [
            [case.assigned(epoch).stream(shard) for epoch in range(case.epochs)]
            for shard in range(case.shards)
        ]
