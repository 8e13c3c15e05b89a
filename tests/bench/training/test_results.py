from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bench.system.ray_cluster import ObjectStoreUse
from bench.throughput.report import describe_breaches, draw_table, summarize
from bench.training.delivered_rows import Verdict
from bench.training.facts import Facts
from bench.training.request import Request
from bench.training.results import TOLERANCE_BYTES, SystemResult, merge_trainers
from bench.training.trainer import EpochTimes, TrainerResult

FACTS = Facts(("a",), 4, 32_000_000, 1, pa.schema([("key", pa.int64())]), "key")
REQUEST = Request(
    system="windrow-ray",
    **vars(FACTS),
    batch_size=2,
    epochs=2,
    trainers=2,
    equal=False,
    window=None,
    seed=0,
    label=None,
    rendezvous=None,
    memory_limit=None,
    object_store_bytes=1,
    cores=2,
)
ESTIMATE: Any = SimpleNamespace(total_bytes=60 * 2**20)


def _trainer(keys: list[int], *epochs: tuple[float, float, float]) -> TrainerResult:
    times = [EpochTimes(start, end, wait, 2, 1) for start, end, wait in epochs]
    return TrainerResult(times, [np.array(keys)] * len(epochs))


def merge_results() -> SystemResult:
    one = _trainer([0, 3], (10, 12, 1.0), (12, 13, 0.5))
    other = _trainer([2, 1], (10, 13, 1.5), (13, 16, 1.5))
    return SystemResult("windrow-ray", 2, merge_trainers(REQUEST, [one, other], True))


def test_epoch_ends_with_the_last_trainer() -> None:
    epochs = merge_results().epochs
    assert [epoch.seconds for epoch in epochs] == [3, 3]
    assert [epoch.wait_share for epoch in epochs] == [2.5 / 5, 2.0 / 4]
    assert [epoch.verdict for epoch in epochs] == [Verdict("key", 0, 0)] * 2


def test_different_epoch_counts_are_an_error() -> None:
    trainers = [_trainer([0], (0, 2, 0)), _trainer([1], (0, 2, 0), (2, 4, 0))]
    with pytest.raises(ValueError, match=r"different numbers of epochs: \[1, 2\]"):
        merge_trainers(REQUEST, trainers, True)


def test_summary_excludes_the_first_epoch_but_not_its_verdict() -> None:
    result = merge_results()
    result.epochs[0].end = 110.0
    result.epochs[0].verdict = Verdict("key", 1, 0)
    summaries = summarize(result, FACTS, scan_seconds=1.5)
    assert (summaries.seconds, summaries.first_epoch_seconds) == (3, 100)
    assert summaries.megabytes_per_second == pytest.approx(32 / 3)
    assert summaries.of_scan == 0.5
    assert summaries.exactly_once == "NO: 1 missing, 0 too many (epoch 0)"


def test_table_is_aligned_and_shows_the_estimate() -> None:
    result = merge_results()
    result.estimate, result.peak_bytes = ESTIMATE, 50 * 2**20
    summaries = summarize(result, FACTS, None)
    lines = draw_table([summaries, replace(summaries, title="x" * 40)]).splitlines()
    ends = [line.index("yes (key)") for line in lines[2:4]]
    assert ends[0] == ends[1] == lines[0].index("exactly once")
    assert lines[0].split().index("estimated") > lines[0].split().index("peak")
    assert (summaries.peak_mib, summaries.estimated_mib) == (50, 60)


def test_breaches_are_described_and_good_results_have_none() -> None:
    good = merge_results()
    good.estimate, good.peak_bytes = ESTIMATE, ESTIMATE.total_bytes + TOLERANCE_BYTES
    good.store = ObjectStoreUse(100, 0)
    assert describe_breaches([good], FACTS) == []
    bad = replace(good, peak_bytes=ESTIMATE.total_bytes + TOLERANCE_BYTES + 1, store=ObjectStoreUse(100, 1))
    bad.epochs[1].verdict = Verdict("key", 1, 0)
    failed = SystemResult("ray-shuffle", 1, error="out of memory")
    breaches = describe_breaches([bad, failed], FACTS)
    assert breaches[0].startswith("windrow ray, 2 trainers: exactly once? NO: 1 missing")
    assert "PEAK of 124 MiB is above the estimate of 60 MiB by more than 64 MiB" in breaches[1]
    assert "SPILLED" in breaches[2]
    assert breaches[3:] == ["Ray Data random_shuffle: FAILED, out of memory"]


def test_rival_may_spill() -> None:
    rival = replace(merge_results(), system="ray-shuffle", trainers=1, store=ObjectStoreUse(100, 10**9))
    assert describe_breaches([rival], FACTS) == []
