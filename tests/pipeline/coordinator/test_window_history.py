"""What the time until a window was complete went to, by when its tasks waited and ran."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from windrow.pipeline.coordinator.window_history import (
    Capacity,
    Production,
    TaskTimes,
    WindowHistory,
    describe_production,
)
from windrow.pipeline.shard.consumer import Consumer
from windrow.pipeline.statistics.phases import Interval, TaskProfile, TrainerStats, add_seconds
from windrow.pipeline.tasks.task import Work

DECODE = TaskProfile({"decode": 3.0, "storage": 1.0})


def total(intervals: Sequence[Interval]) -> dict[str, float]:
    found: dict[str, float] = {}
    for interval in intervals:
        found = add_seconds(found, interval.phases)
    return {name: round(seconds, 1) for name, seconds in found.items() if seconds > 0.05}


def times(*tasks: tuple[float, float, float], profile: TaskProfile = DECODE) -> list[TaskTimes]:
    return [TaskTimes(*task, profile) for task in tasks]


def describe(tasks: list[TaskTimes], workers: int = 2, **more: float) -> tuple[Interval, ...]:
    return describe_production((0, 0), tasks, (), capacity=Capacity(workers), **more)  # type: ignore[arg-type]


def test_intervals_are_consecutive_and_their_phases_add_up() -> None:
    intervals = describe(times((0, 0, 4), (0, 0, 3), (0, 3, 8)))
    assert (intervals[0].start, intervals[-1].stop) == (0.0, 8.0)
    for before, after in pairwise(intervals):
        assert before.stop == after.start
    for interval in intervals:
        assert sum(interval.phases.values()) == pytest.approx(interval.stop - interval.start)


def test_running_tasks_give_their_phases() -> None:
    assert total(describe(times((0, 0, 4), (0, 0, 4)))) == {"decode": 3.0, "storage": 1.0}


def test_a_queue_behind_busy_workers_is_what_they_do() -> None:
    tasks = times((0, 0, 4), (0, 0, 4), (0, 4, 8), (0, 4, 8))
    assert total(describe(tasks)) == {"decode": 6.0, "storage": 2.0}


def test_tasks_that_wait_while_workers_are_missing_wait_for_cpus() -> None:
    tasks = times((0, 0, 4), (0, 4, 8), (0, 8, 12), (0, 12, 16))
    assert total(describe(tasks, workers=4)) == {"decode": 3.0, "storage": 1.0, "cpus": 12.0}
    assert total(describe(tasks, workers=2)) == {"decode": 6.0, "storage": 2.0, "cpus": 8.0}
    assert total(describe(tasks, workers=1)) == {"decode": 12.0, "storage": 4.0}


def test_a_long_task_is_no_lack_of_cpus() -> None:
    assert "cpus" not in total(describe(times((0, 0, 4), (0, 0, 16)), workers=4))


def test_workers_that_other_windows_keep_busy_are_not_missing() -> None:
    tasks = times((0, 0, 8), (0, 8, 16))
    assert "cpus" in total(describe(tasks))
    recent = [((0, 1), 0.0, 16.0)]
    assert "cpus" not in total(describe_production((0, 0), tasks, recent, capacity=Capacity(2)))


def test_before_the_first_task_of_the_run_it_starts() -> None:
    found = total(describe(times((0, 8, 16)), first_start=8.0))
    assert found == {"start": 8.0, "decode": 6.0, "storage": 2.0}


def test_memory_takes_the_last_part_of_a_wait() -> None:
    intervals = describe(times((0, 0, 16)), blocked_seconds=4.0)
    assert total(intervals) == {"decode": 9.0, "storage": 3.0, "memory": 4.0}
    assert intervals[-1].phases == {"memory": 2.0}
    assert total(describe(times((0, 0, 16)), rebuilt=True)) == {"memory": 16.0}


def test_a_window_without_tasks_took_no_time() -> None:
    assert describe([]) == ()


class History:
    """A history with a clock, and one window of two tasks."""

    def __init__(self, workers: int = 2) -> None:
        self.now = 0.0
        self.history = WindowHistory(Capacity(workers), lambda: self.now)
        self.works = [Work(0, 3, part, 0, attempt=1) for part in range(2)]

    def run(self, start: float, stop: float) -> None:
        self.now = start
        for work in self.works:
            self.history.submit(work)
        self.now = stop
        for work in self.works:
            self.history.finish(work, "map", start, stop, DECODE, "worker 1")


@pytest.mark.parametrize("keys", [[(0, 3), (0, 4), (0, 5)], [(0, 5), (0, 4), (0, 3)]])
def test_of_several_windows_the_last_to_be_complete_is_described(keys: list[tuple[int, int]]) -> None:
    one = History()
    one.run(0, 4)
    one.works = [replace(work, window=4) for work in one.works]
    one.run(5, 9)
    found = one.history.describe(keys)
    assert (found[0].start, found[-1].stop) == (one.history.describe([(0, 4)])[0].start, 9)


def test_blocked_time_counts_as_far_as_workers_are_idle() -> None:
    one = History()
    one.history.note_memory((0, 3), running=1)
    one.now = 4.0
    one.history.note_memory(None, running=0)
    one.now = 9.0
    one.run(10, 18)
    assert total(one.history.describe([(0, 3)]))["memory"] == 2.0


def test_a_window_is_described_when_its_history_is_read_as_it_was_when_it_was_complete() -> None:
    one = History()
    one.run(0, 4)
    found = one.history.describe([(0, 3)])
    # what comes later does not count
    one.history.note_memory((0, 3), running=0)
    one.now = 60.0
    one.history.note_memory(None, running=0)
    one.run(60, 70)
    assert total(found) == {"decode": 3.0, "storage": 1.0}
    assert pickle.loads(pickle.dumps(found)) == tuple(found)


def test_intervals_are_computed_once() -> None:
    calls = []

    def compute() -> tuple[Interval, ...]:
        calls.append(1)
        return (Interval(0.0, 1.0, {"decode": 1.0}),)

    production = Production(compute)
    assert not calls
    assert [*production, *production] == 2 * [production[0]]
    assert len(calls) == 1


def test_a_dropped_window_that_is_prepared_again_waits_for_memory() -> None:
    one = History()
    one.run(0, 4)
    one.history.drop((0, 3), rebuild=True)
    assert not one.history.describe([(0, 3)])
    one = History()
    one.run(0, 4)
    one.history.drop((0, 3), rebuild=True)
    one.run(8, 16)
    assert total(one.history.describe([(0, 3)])) == {"memory": 8.0}


def test_blocked_time_before_a_window_is_dropped_is_forgotten() -> None:
    one = History()
    one.history.note_memory((0, 3), running=0)
    one.now = 4.0
    one.history.drop((0, 3), rebuild=False)
    one.history.note_memory(None, running=0)
    one.run(10, 18)
    assert "memory" not in total(one.history.describe([(0, 3)]))


def test_late_results_of_a_dropped_window_count_as_work_only() -> None:
    one = History()
    one.now = 0.0
    for work in one.works:
        one.history.submit(work)
    one.history.drop((0, 3), rebuild=False)
    for work in one.works:
        one.history.finish(work, "map", 0, 4, DECODE, "worker 1")
    assert not one.history.describe([(0, 3)])
    stats = one.history.run_stats(spans=True)
    assert (stats.tasks, stats.profile.phases["decode"], len(stats.spans)) == (2, 6.0, 2)


def test_spans_tell_when_tasks_were_submitted_and_what_they_did() -> None:
    one = History()
    one.run(0, 4)
    (span, _) = one.history.spans
    assert (span.submit_time, span.start_time, span.stop_time) == (0.0, 0, 4)
    assert dict(span.phases) == {"decode": 3.0, "storage": 1.0}


def make_report(consumer: Consumer, worked: float) -> TrainerStats:
    """The next report of a consumer that has worked for some more seconds."""
    consumer.totals.note_short(worked=worked, waited=0.0)
    consumer.spans.add("work", 0, 0, 0.0, worked, consumer.spans.lane, 0.0)
    return consumer.report()


def test_a_report_that_was_overtaken_replaces_no_later_one() -> None:
    history, consumer = WindowHistory(Capacity(1)), Consumer(0)
    reports = [make_report(consumer, seconds) for seconds in (1.0, 2.0, 4.0)]
    for number in (0, 2, 1):
        history.note_trainer(reports[number])
    stats = history.run_stats(spans=True)
    assert [trainer.work_seconds for trainer in stats.trainers] == [7.0]
    assert [span.stop_time for span in stats.trainer_spans] == [1.0, 4.0, 2.0]


def test_a_late_report_of_a_trainer_that_died_does_not_replace_its_successors() -> None:
    history, dead, successor = WindowHistory(Capacity(1)), Consumer(0), Consumer(0)
    reports = [make_report(dead, 5.0), make_report(dead, 5.0), make_report(successor, 1.0)]
    for number in (0, 2, 1):
        history.note_trainer(reports[number])
    assert [trainer.work_seconds for trainer in history.run_stats(spans=False).trainers] == [1.0]
