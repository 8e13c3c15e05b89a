"""Golden orders of mixtures: a guarantee, not a snapshot; see test_golden.py."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any, get_args

import pytest

from tests.laws.joined_mixtures import JoinedCase, JoinedReading
from tests.laws.mixture_cases import MixedCase, MixtureReading, SourceCase
from tests.laws.reading import take_rows
from windrow.pipeline.executors.threads import ThreadsExecutor
from windrow.pipeline.plan.mixture import MixtureUnit
from windrow.pipeline.plan.shares import Shares
from windrow.shuffle.order.epoch_plan import WindowCut

pytestmark = pytest.mark.usefixtures("small_runs", "leaves_no_thread")

SOURCES = (
    SourceCase((7, 0, 1, 12, 5, 3), WindowCut(blocks_per_window=2), 7, None),
    SourceCase((4, 6), WindowCut(), 8, 2),
    SourceCase((5, 9, 2), WindowCut(bytes_per_window=100), None, None),
)
SCHEDULE = Shares.steps({0: {"c": 3, "a": 1}, 2: {"c": 1, "a": 1, "é": 2}, 4: {"c": 0.3, "é": 0.7}})
SHORT = MixedCase(SOURCES, (0, 1, 2), SCHEDULE, "drop", 5)
# source 0 has the numbers from 100,000 on, source 1 those from 200,000 on, source 2 those from 300,000 on
# fmt: off
GOLDEN = [
    [
        100_020, 200_002, 100_023, 100_024, 100_022, 200_003, 100_026, 100_005,
        300_000, 200_005, 300_001, 100_001, 300_004, 200_009, 100_007, 300_005,
        100_011, 300_008, 300_009, 300_010, 300_013, 300_014, 300_015, 100_012,
    ],
    [
        100_025, 100_027, 100_021, 200_008, 200_006, 100_006, 100_000, 100_004,
        100_003, 300_002, 200_000, 300_003, 200_001, 300_006, 100_002, 300_007,
        100_019, 300_011, 300_012, 100_016, 300_000, 300_001, 100_015, 300_002,
    ],
]
# fmt: on
# irregular shares, whose rows do not come at equal distances
IRREGULAR = Shares.steps({0: {"c": 17, "a": 5, "é": 3}, 500: {"c": 0.1, "a": 0.62, "é": 0.28}}, unit="rows")
LONG = MixedCase(SOURCES, (2, 0, 1), IRREGULAR, "repeat", -3)
# sequences of 6 tokens: row x is a document of x mod 4 tokens, 8·x and those behind it, in two sources with a -1 behind
PACKED = MixedCase(
    tuple(replace(source, packed=6, has_eos=at != 1) for at, source in enumerate(SOURCES)),
    (1, 2, 0),
    Shares.steps({0: {"c": 2, "a": 1, "é": 1}, 100: {"c": 1, "a": 3}}, unit="tokens"),
    "repeat",
    11,
)
GOLDEN_SEQUENCES = [
    [800_184, 800_185, 800_186, -1, 800_200, -1],
    [2_400_008, -1, 2_400_016, 2_400_017, -1, 2_400_024],
    [1_600_016, 1_600_017, 1_600_024, 1_600_025, 1_600_026, 1_600_048],
    [800_216, 800_217, 800_218, -1, 800_168, -1],
]
# the same documents in sequences that join those of all sources
JOINED = {
    unit: JoinedCase(MixedCase(SOURCES, (1, 2, 0), PACKED.shares, "repeat", 11), 6, unit=unit)
    for unit in get_args(MixtureUnit)
}
GOLDEN_JOINED = {
    "rows": [
        [1_600_016, 1_600_017, -1, 800_184, 800_185, 800_186],
        [-1, 2_400_008, -1, 800_200, -1, 800_216],
        [800_217, 800_218, -1, 1_600_024, 1_600_025, 1_600_026],
        [-1, 2_400_016, 2_400_017, -1, 800_168, -1],
    ],
    "tokens": [
        [2_400_008, -1, 800_184, 800_185, 800_186, -1],
        [1_600_016, 1_600_017, -1, 800_200, -1, 2_400_016],
        [2_400_017, -1, 800_216, 800_217, 800_218, -1],
        [1_600_024, 1_600_025, 1_600_026, -1, 800_168, -1],
    ],
}
JOINED_DIGESTS = {
    "rows": "ab8be1d2ae3594c3b17f03109c7a878b22b5ed28fa27f7f80d11d3240f19e9a0",
    "tokens": "3e87c5435ec301e8dc50f56bfde51ef9eb53223314287a64b486857da59507ce",
}
PACKED_DIGEST = "554b9b1e137bfc2faad72f97f3304aa89f76615185d04772338515b8929a312d"
GOLDEN_DIGEST = "372bfb04a87e20b00f8d4aeb140edfe665b973a21094609d6e52bcc2096d6ff1"


def read(case: MixedCase | JoinedCase, shards: int, batch_rows: int, steps: int) -> list[list[Any]]:
    """The rows of each shard."""
    parts = case.pipeline(ThreadsExecutor(2)).split(shards)
    try:
        iterators = [shard.iter_batches(batch_rows) for shard in parts]
        found: list[list[Any]] = [[] for _ in parts]
        for _ in range(steps):
            for rows, iterator in zip(found, iterators, strict=True):
                rows += take_rows(next(iterator))
        del iterators, iterator
        return found
    finally:
        for shard in parts:
            shard.close()


def test_a_short_mixture() -> None:
    assert read(SHORT, 2, 4, 6) == GOLDEN


def test_a_long_mixture() -> None:
    text = json.dumps(read(LONG, 3, 50, 6), separators=(",", ":"))
    assert hashlib.sha256(text.encode()).hexdigest() == GOLDEN_DIGEST


def test_a_mixture_of_packed_sources() -> None:
    found = read(PACKED, 2, 20, 6)
    assert found[0][:4] == GOLDEN_SEQUENCES
    text = json.dumps(found, separators=(",", ":"))
    assert hashlib.sha256(text.encode()).hexdigest() == PACKED_DIGEST


@pytest.mark.parametrize("unit", ["rows", "tokens"])
def test_a_mixture_that_joins_documents(unit: str) -> None:
    found = read(JOINED[unit], 2, 20, 6)
    assert found[0][:4] == GOLDEN_JOINED[unit]
    text = json.dumps(found, separators=(",", ":"))
    assert hashlib.sha256(text.encode()).hexdigest() == JOINED_DIGESTS[unit]


@pytest.mark.parametrize("unit", ["rows", "tokens"])
def test_golden_orders_of_joined_documents_match_the_reference(unit: str) -> None:
    reading = JoinedReading(JOINED[unit], ThreadsExecutor(2))
    try:
        reading.split(2)
        reading.read(6, 20)
    finally:
        reading.close()


@pytest.mark.parametrize(("case", "shards", "batch_rows"), [(SHORT, 2, 4), (LONG, 3, 50), (PACKED, 2, 20)])
def test_golden_orders_match_the_reference(case: MixedCase, shards: int, batch_rows: int) -> None:
    reading = MixtureReading(case, ThreadsExecutor(2))
    try:
        reading.split(shards)
        reading.read(6, batch_rows)
    finally:
        reading.close()
