"""Where a trainer's waits went: logged intervals, and the totals of a shard."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from windrow.core.phase_clock import phase
from windrow.pipeline.coordinator.phases import Interval
from windrow.pipeline.shard.waits import Totals, WaitLog


def rounded(seconds: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 2) for name, value in seconds.items()}


def log_of(*intervals: tuple[float, float, dict[str, float]]) -> WaitLog:
    log = WaitLog()
    log._intervals.extend(Interval(*interval) for interval in intervals)
    return log


def test_a_wait_is_divided_by_the_intervals_that_it_overlaps() -> None:
    log = log_of(
        (0, 10, {"decode": 9.0, "storage": 1.0}), (10, 11, {"collate": 1.0}), (11, 20, {"device": 1})
    )
    assert rounded(log.take(5, 12)) == {"decode": 4.5, "storage": 0.5, "collate": 1.0, "device": 1.0 - 0.0}


def test_an_interval_longer_than_a_wait_stays_for_the_next_one() -> None:
    log = log_of((0, 10, {"decode": 10.0}))
    assert rounded(log.take(1, 2)) == {"decode": 1.0}
    assert rounded(log.take(4, 6)) == {"decode": 2.0}
    assert rounded(log.take(9, 12)) == {"decode": 1.0, "other": 2.0}
    assert rounded(log.take(12, 13)) == {"other": 1.0}, "it has ended"


def test_an_interval_that_is_added_meanwhile_to_a_full_log_is_not_lost() -> None:
    class FilledMeanwhile(deque[Interval]):
        """The preparing thread adds an interval whenever the consumer has taken one."""

        def popleft(self) -> Interval:
            first = super().popleft()
            self.append(Interval(20, 30, {"device": 10.0}))
            return first

    log = WaitLog()
    log._intervals = FilledMeanwhile(
        [Interval(0, 10, {"decode": 10.0}), Interval(10, 20, {"storage": 10.0})], maxlen=2
    )
    assert rounded(log.take(1, 2)) == {"decode": 1.0}
    assert [one.start for one in log._intervals] == [10, 20]
    assert rounded(log.take(2, 25)) == {"decode": 8.0, "storage": 10.0, "device": 5.0}


def test_a_wait_for_rows_has_the_phases_of_their_preparation() -> None:
    log = WaitLog()
    now = time.time()
    log.add_wait(
        now - 4, [Interval(now - 9, now - 3, {"memory": 6}), Interval(now - 3, now + 9, {"decode": 2})]
    )
    assert rounded(log.take(now - 4, now)) == {"memory": 1.0, "decode": 3.0}


@pytest.mark.parametrize("profiled", [True, False])
def test_conversion_is_logged_batch_by_batch(profiled: bool) -> None:
    def convert() -> Iterator[int]:
        for number in range(2):
            time.sleep(0.01)
            with phase("device"):
                time.sleep(0.02)
            yield number

    log = WaitLog()
    for _ in log.timed(convert(), profiled=profiled):
        time.sleep(0.01)
    first, second, *_ = log._intervals
    assert second.start - first.stop >= 0.01, "the consumer's time is not conversion"
    assert set(first.phases) == ({"collate", "device"} if profiled else {"collate"})
    if profiled:
        assert first.phases["device"] >= 0.02
        assert first.phases["collate"] >= 0.01


@dataclass
class Reader:
    steps: int = 2
    rows: int = 20
    size_bytes: int = 160


def test_totals_add_up_over_epochs() -> None:
    totals, first, second = Totals(3), Reader(), Reader(1, 5, 40)
    totals.begin(first, 0.5)
    totals.note(worked=1.0, waited={"decode": 2.0})
    totals.end(first)
    totals.begin(second, 0.25)
    totals.note(worked=1.0, waited={"decode": 1.0, "other": 0.5})
    stats = totals.stats()
    assert (stats.shard, stats.batches, stats.rows, stats.bytes) == (3, 3, 25, 200)
    assert (stats.work_seconds, stats.waits) == (2.0, {"start": 0.75, "decode": 3.0, "other": 0.5})
    assert (stats.wait_seconds, stats.rows_per_second) == (4.25, 4.0)


def test_until_the_first_batch_what_has_no_reason_is_the_start() -> None:
    totals, reader = Totals(0), Reader(steps=0)
    totals.begin(reader, 0.0)
    totals.note(worked=0.0, waited={"other": 2.0, "decode": 1.0})
    reader.steps = 1
    totals.note(worked=0.0, waited={"other": 3.0})
    assert totals.stats().waits == {"start": 2.0, "decode": 1.0, "other": 3.0}


def test_an_epoch_that_ended_twice_counts_once() -> None:
    totals, reader = Totals(0), Reader()
    totals.begin(reader, 0.0)
    totals.end(reader)
    totals.end(reader)
    assert totals.stats().rows == 20


def test_short_waits_are_divided_by_what_took_as_short(monkeypatch: pytest.MonkeyPatch) -> None:
    log = WaitLog()
    monkeypatch.setattr("windrow.pipeline.shard.waits.time", SimpleNamespace(time=lambda: 100.0))
    log.add(100 - 5e-4, {"collate": 1.0})
    log.add(100 - 3e-4, {"device": 2.0, "collate": 1.0})
    log.add(99.0, {"decode": 1.0})
    few, many = log.divide_short(4e-4), log.divide_short(1.0)
    assert few == pytest.approx({"collate": 3e-4, "device": 1e-4})
    assert many == pytest.approx({"collate": 6e-4, "device": 2e-4, "other": 1 - 8e-4})
    totals = Totals(0, log.divide_short)
    totals.note_short(worked=1.0, waited=4e-4)
    assert totals.stats().waits == few
    # what has no reason is explained by it, too
    totals.begin(reader := Reader(), 0.0)
    totals.note(worked=0.0, waited={"memory": 1.0, "other": 0.8})
    assert totals.stats().waits == pytest.approx(
        {"start": 0.0, "memory": 1.0, **log.divide_short(0.8 + 4e-4)}
    )
    totals.end(reader)


def test_short_waits_are_other_ones_where_nothing_was_logged() -> None:
    assert WaitLog().divide_short(1.0) == {"other": 1.0}
    totals, reader = Totals(0), Reader()
    totals.begin(reader, 0.0)
    totals.note_short(worked=1.0, waited=1e-6)
    totals.note(worked=1.0, waited={"decode": 1.0, "other": 1.0})
    assert totals.stats().waits == {"start": 0.0, "decode": 1.0, "other": 1.0 + 1e-6}
    assert totals.stats().work_seconds == 2.0
