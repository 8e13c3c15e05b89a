"""Where a trainer's waits went: logged intervals, and the totals of a shard."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest

import windrow
from windrow.core.phase_clock import phase
from windrow.pipeline.shard.consumer import SpanLog
from windrow.pipeline.shard.epoch_reader import EpochReader
from windrow.pipeline.shard.run_reader import RunReader
from windrow.pipeline.shard.waits import Totals, WaitLog
from windrow.pipeline.statistics.phases import Dividable, Interval, Span


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
    class FilledMeanwhile(deque[Dividable]):
        """The preparing thread adds an interval whenever the consumer has taken one."""

        def popleft(self) -> Dividable:
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


@pytest.mark.parametrize(
    ("asked", "waited"),
    [
        (6.0, {"memory": 1.0, "decode": 3.0, "transform": 5.0, "shuffle": 3.0, "prepare": 1.0}),
        (13.0, {"transform": 2.0, "shuffle": 3.0, "prepare": 1.0}),
        (17.0, {"shuffle": 1.5, "prepare": 0.5}),
        (18.5, {"shuffle": 0.375, "prepare": 0.125}),
    ],
)
def test_a_wait_for_rows_has_the_phases_of_their_preparation(asked: float, waited: dict[str, float]) -> None:
    log = WaitLog()
    produced = [Interval(0.0, 7.0, {"memory": 6}), Interval(7.0, 10.0, {"decode": 2})]
    placing = (10.0, 15.0, 19.0, (("shuffle", 3.0), ("prepare", 1.0)))
    busy: list[tuple[float, float]] = []

    def describe_queue(start: float, stop: float) -> dict[str, float]:
        busy.append((start, stop))
        return {"transform": 1.0}

    log.add_wait(asked, 19.0, produced, placing, lambda: describe_queue)
    assert busy == [], "nobody has asked"
    assert rounded(log.take(asked, 19.0)) == rounded(waited)
    assert busy == ([(max(10.0, asked), 15.0)] if asked < 15 else [])


def not_busy() -> None:
    """Nobody knows of tasks."""


def test_a_run_that_was_not_measured_has_no_known_reason() -> None:
    log = WaitLog()
    log.add_wait(1.0, 3.0, (), None, not_busy)
    assert log.take(1.0, 3.0) == {"other": 2.0}


def test_a_short_time_in_the_queue_is_that_of_placing() -> None:
    log = WaitLog()
    placing = (1.0, 1.0005, 2.0, (("shuffle", 1.0),))
    log.add_wait(1.0, 2.0, (), placing, lambda: pytest.fail("it is short"))
    assert log.take(1.0, 2.0) == pytest.approx({"shuffle": 1.0})


def test_making_a_batch_follows_the_wait_for_its_rows() -> None:
    spans: list[tuple[float, float]] = []
    log = WaitLog(lambda start, stop, _: spans.append((start, stop)))
    log.add_wait(1.0, 3.0, (), (0.0, 0.0, 3.0, (("shuffle", 3.0),)), not_busy)
    log.add_conversion(3.0, 3.5)
    assert log.take(1.0, 4.0) == {"shuffle": 2.0, "collate": 0.5, "other": 0.5}
    assert spans == [(3.0, 3.5)]


def test_conversion_is_logged_batch_by_batch() -> None:
    def convert() -> Iterator[int]:
        for number in range(2):
            time.sleep(0.01)
            with phase("device"):
                time.sleep(0.02)
            yield number

    log = WaitLog()
    for _ in log.timed(convert()):
        time.sleep(0.01)
    first, second = (cast(Interval, one) for one in (log._intervals[0], log._intervals[1]))
    assert second.start - first.stop >= 0.01, "the consumer's time is not conversion"
    assert first.phases["device"] >= 0.02
    assert first.phases["collate"] >= 0.01


@dataclass
class Reader:
    steps: int = 2
    rows: int = 20
    size_bytes: int = 160
    place: tuple[int, int] | None = (0, 20)


class Divided:
    """Tells what each wait was for, by its length, and keeps what it is told of them."""

    def __init__(self, *waits: dict[str, float]) -> None:
        self.waits = {sum(wait.values()): wait for wait in waits}
        self.noted: list[tuple[tuple[int, int], float, float, Mapping[str, float]]] = []

    def divide(self, start: float, stop: float) -> Mapping[str, float]:
        return self.waits[stop - start]

    def note(self, window: tuple[int, int], start: float, stop: float, phases: Mapping[str, float]) -> None:
        self.noted.append((window, start, stop, phases))


def test_totals_add_up_over_epochs() -> None:
    divided = Divided({"decode": 2.0}, {"decode": 1.0, "other": 0.5})
    totals, first, second = Totals(3, divided.divide, note=divided.note), Reader(), Reader(1, 5, 40)
    totals.begin(first, 0.5)
    totals.note_wait((0, 1), 10.0, 12.0, worked=1.0)
    assert divided.noted == [], "nobody has asked"
    totals.end(first)
    totals.begin(second, 0.25)
    totals.note_wait((1, 0), 20.0, 21.5, worked=1.0)
    stats = totals.stats()
    assert divided.noted == [
        ((0, 1), 10.0, 12.0, {"decode": 2.0}),
        ((1, 0), 20.0, 21.5, {"decode": 1.0, "other": 0.5}),
    ]
    assert (stats.shard, stats.batches, stats.rows, stats.bytes) == (3, 3, 25, 200)
    assert (stats.work_seconds, stats.waits) == (2.0, {"start": 0.75, "decode": 3.0, "other": 0.5})
    assert (stats.wait_seconds, stats.rows_per_second) == (4.25, 4.0)


def test_until_the_first_batch_what_has_no_reason_is_the_start() -> None:
    divided = Divided({"other": 2.0, "decode": 1.0}, {"other": 4.0})
    totals, reader = Totals(0, divided.divide), Reader(steps=0)
    totals.begin(reader, 0.0)
    totals.note_wait((0, 0), 0.0, 3.0, worked=0.0)
    reader.steps = 1
    totals.note_wait((0, 0), 4.0, 8.0, worked=0.0)
    assert totals.stats().waits == {"start": 2.0, "decode": 1.0, "other": 4.0}


def test_waits_that_nobody_asks_for_are_divided_before_they_are_many() -> None:
    divided = Divided({"decode": 1.0})
    totals = Totals(0, divided.divide, note=divided.note)
    for at in range(1_000):
        totals.note_wait((0, 0), at, at + 1.0, worked=0.0)
    assert len(divided.noted) >= 800
    totals.settle()
    assert [start for _, start, *_ in divided.noted] == list(range(1_000))


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
    totals = Totals(0, divide_short=log.divide_short)
    totals.note_short(worked=1.0, waited=4e-4)
    assert totals.stats().waits == few
    assert log.divide_short(1e-3, 4e-4) == pytest.approx({"collate": 1e-3 * 5 / 6, "device": 1e-3 / 6})
    totals = Totals(0, divide_short=log.divide_short)
    totals.note_short(worked=1.0, waited=4e-4, converting=2e-4)
    assert totals.stats().waits == pytest.approx({"collate": 3.2e-4, "device": 0.8e-4})
    totals = Totals(0, divide_short=log.divide_short)
    totals.note_short(worked=1.0, waited=4e-4)
    # what has no reason is explained by it, too
    totals.begin(reader := Reader(), 0.0)
    monkeypatch.setattr(totals, "_divide", lambda *_: {"memory": 1.0, "other": 0.8})
    totals.note_wait((0, 0), 0.0, 1.8, worked=0.0)
    assert totals.stats().waits == pytest.approx(
        {"start": 0.0, "memory": 1.0, **log.divide_short(0.8 + 4e-4)}
    )
    totals.end(reader)


def test_short_waits_are_other_ones_where_nothing_was_logged() -> None:
    assert WaitLog().divide_short(1.0) == {"other": 1.0}
    totals, reader = Totals(0, lambda *_: {"decode": 1.0, "other": 1.0}), Reader()
    totals.begin(reader, 0.0)
    totals.note_short(worked=1.0, waited=1e-6)
    totals.note_wait((0, 0), 0.0, 2.0, worked=1.0)
    assert totals.stats().waits == {"start": 0.0, "decode": 1.0, "other": 1.0 + 1e-6}
    assert totals.stats().work_seconds == 2.0


def test_statistics_that_a_signal_handler_asks_for_do_not_wait_for_themselves() -> None:
    totals = Totals(0, lambda *_: {"decode": 1.0}, note=lambda *_: totals.settle())
    totals.note_wait((0, 0), 0.0, 1.0, worked=0.0)
    totals.note_wait((0, 0), 1.0, 2.0, worked=0.0)
    assert totals.stats().waits == {"decode": 2.0}


def _waits(pipe: windrow.DatasetPipeline, batch_size: int) -> Mapping[str, float]:
    with pipe.options(executor="threads").iterator() as shard:
        for epoch in shard.iter_epochs():
            for batch in epoch.iter_batches(batch_size=batch_size):
                del batch
        return shard.stats().trainer.waits


def test_waiting_for_the_end_of_an_epoch_is_not_making_its_last_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    take = RunReader._next

    def late(reader: RunReader) -> Any:
        run = take(reader)
        if run is None:
            time.sleep(0.3)
        return run

    monkeypatch.setattr(RunReader, "_next", late)
    waits = _waits(windrow.range(1_000).repeat(1).random_shuffle_each_window(seed=7), 600)
    assert sum(waits.values()) >= 0.3
    assert waits.get("collate", 0.0) < 0.1


def test_waiting_for_the_coordinator_is_not_making_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EpochReader, "_check_opening", lambda reader: time.sleep(0.3))
    waits = _waits(windrow.range(1_000).repeat(1).random_shuffle_each_window(seed=7), 500)
    assert sum(waits.values()) >= 0.3
    assert waits.get("collate", 0.0) < 0.1


def test_spans_that_are_being_reported_are_still_read() -> None:
    log, seen = SpanLog(0), list[int]()
    reader = threading.Thread(target=lambda: seen.append(len(list(log))))

    class ReadMeanwhile(deque[Span]):
        """Another thread reads the spans while they are moved."""

        def __iadd__(self, spans: Iterable[Span]) -> ReadMeanwhile:
            reader.start()
            reader.join(0.2)
            self.extend(spans)
            return self

    log._sent = ReadMeanwhile()
    log.add("work", 0, 0, 1.0, 2.0, "shard 0", 0.0)
    assert len(log.take_unsent()) == 1
    reader.join()
    assert seen == [1]
