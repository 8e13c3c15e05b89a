"""Faults planted on purpose: each takes one precaution out of the real code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from bench.simulate.actor import Actor
from windrow.pipeline.checkpoint.cursor import Cursor
from windrow.pipeline.coordinator.buffered_window import BufferedWindow
from windrow.pipeline.coordinator.core import CoordinatorCore
from windrow.pipeline.coordinator.driver import Driver
from windrow.pipeline.coordinator.failures import Failure
from windrow.pipeline.coordinator.requests import OpenRequest
from windrow.pipeline.coordinator.scheduling.events import Drop, Place
from windrow.pipeline.coordinator.scheduling.row_counts import EpochCounts
from windrow.pipeline.coordinator.scheduling.scheduler import Scheduler
from windrow.pipeline.coordinator.scheduling.shard_tracker import ShardTracker
from windrow.pipeline.coordinator.skipped_blocks import SkippedBlocks
from windrow.pipeline.plan.window_budget import Budget
from windrow.pipeline.shard.window_collector import WindowCollector
from windrow.shuffle.order.shard_assignment import ShardAssignment

__all__ = ["PLANTED"]


def lose_a_wake_up(patch: pytest.MonkeyPatch) -> None:
    """A shard that was silent for long is not heard when it waits for rows again."""
    heartbeat = ShardTracker.heartbeat

    def hear(self: ShardTracker, shard: int, now: float) -> None:
        if not self.is_silent(shard, now):
            heartbeat(self, shard, now)

    patch.setattr(ShardTracker, "heartbeat", hear)


def serve_two_readers(patch: pytest.MonkeyPatch) -> None:
    """A reader that has been replaced gets the same rows as its successor."""

    def is_current(self: CoordinatorCore, request: OpenRequest) -> bool:
        opened = self._opened.get(request.shard)
        return opened is None or opened.cursor.epoch == request.cursor.epoch

    patch.setattr(CoordinatorCore, "_is_current", is_current)


def take_late_results(patch: pytest.MonkeyPatch) -> None:
    """The result of a try that was given up is delivered beside that of the next."""
    take = Driver._record_result

    def take_any(self: Driver, task: Any, report: Any, output: Any, lane: str) -> None:
        held = self._buffered.get((task.work.epoch, task.work.window))
        if held is not None and held.attempt != task.work.attempt:
            held.add(task.work.part, output, ordered=task.ordering is not None)
        take(self, task, report, output, lane)

    patch.setattr(Driver, "_record_result", take_any)


def leak_a_reference(patch: pytest.MonkeyPatch) -> None:
    """A part that comes after its slice was passed is held to the window's end."""

    def take(self: BufferedWindow, part: int, output: Any, *, ordered: bool) -> None:
        self.tables.pop(part, None)
        (self.outputs if ordered else self.tables)[part] = output

    patch.setattr(BufferedWindow, "add", take)


def leak_a_window(patch: pytest.MonkeyPatch) -> None:
    """A window that every shard has passed is released by the scheduler, and held by the driver."""
    drop = Driver._drop

    def keep(self: Driver, instruction: Drop) -> None:
        if instruction.slices is not None or instruction.rebuild:
            drop(self, instruction)

    patch.setattr(Driver, "_drop", keep)


def keep_a_stale_location(patch: pytest.MonkeyPatch) -> None:
    """Parts of a try that was given up, or of a coordinator that is gone, count as parts of the next."""

    def add(self: WindowCollector, reply: Any, attempt: object) -> None:
        self._parts, self.layout, self.starts = reply.parts, reply.layout, reply.starts
        self.outputs.update(reply.outputs)

    patch.setattr(WindowCollector, "add", add)


def name_no_incarnation(patch: pytest.MonkeyPatch) -> None:
    """A try of a restarted coordinator has the name of one of its predecessor."""
    drive = CoordinatorCore._ensure_driver

    def drive_unnamed(self: CoordinatorCore, batch_rows: int) -> Driver:
        driver = drive(self, batch_rows)
        self._incarnation = ""
        return driver

    patch.setattr(CoordinatorCore, "_ensure_driver", drive_unnamed)


def restart_at_a_wrong_row(patch: pytest.MonkeyPatch) -> None:
    """A restarted coordinator deals a resumed epoch from its first row."""
    open_request = CoordinatorCore._open

    def open_at_start(self: CoordinatorCore, request: OpenRequest) -> Any:
        if self._environment.is_restarted():
            request = replace(request, cursor=Cursor(request.cursor.epoch))
        return open_request(self, request)

    patch.setattr(CoordinatorCore, "_open", open_at_start)


def restart_a_slice_too_far(patch: pytest.MonkeyPatch) -> None:
    """A restarted coordinator takes it that a shard has passed one slice more."""
    tell = CoordinatorCore._acknowledge

    def tell_more(self: CoordinatorCore, driver: Driver, shard: int, place: Place) -> None:
        more = self._environment.is_restarted() and place.slice > 0
        tell(self, driver, shard, replace(place, slice=place.slice + 1) if more else place)

    patch.setattr(CoordinatorCore, "_acknowledge", tell_more)


def forget_what_polls_say(patch: pytest.MonkeyPatch) -> None:
    """A place in a request counts only where the shard is not known: found by this simulation."""
    look = CoordinatorCore._read_window

    def look_without(self: CoordinatorCore, request: Any, place: Place, *rest: Any) -> Any:
        known = request.shard in self._acknowledged
        return look(self, request, Place(request.cursor.epoch, 0) if known else place, *rest)

    patch.setattr(CoordinatorCore, "_read_window", look_without)


def serve_incomplete_windows(patch: pytest.MonkeyPatch) -> None:
    """A shard that comes back to a window gets what is left of it: found by this simulation."""
    patch.setattr(Scheduler, "_drop_incomplete", lambda self: None)


def forget_who_has_closed(patch: pytest.MonkeyPatch) -> None:
    """A restarted coordinator holds windows for shards that closed before: found by this simulation."""
    patch.setattr(Actor, "is_restarted", lambda self: False)


def round_the_limit_down(patch: pytest.MonkeyPatch) -> None:
    """The largest window that the plan accepts may lack a byte: found by this simulation."""
    patch.setattr(
        Budget, "outputs_limit_bytes", property(lambda self: int(self.windows_limit_bytes / self.copies))
    )


def keep_what_failed(patch: pytest.MonkeyPatch) -> None:
    """A run that has failed holds its windows until Python looks for cycles: found by this simulation."""

    def task_failed(self: Driver, failure: Failure) -> None:
        self._failure = self._failure or failure

    patch.setattr(Driver, "task_failed", task_failed)


def deal_before_counting(patch: pytest.MonkeyPatch) -> None:
    """Rows are assigned before those behind the window are counted."""

    def is_ordered(self: EpochCounts, window: int, assignment: ShardAssignment) -> bool:
        return self.first_row(window + 1) is not None

    patch.setattr(EpochCounts, "is_ordered", is_ordered)


def forget_corruption(patch: pytest.MonkeyPatch) -> None:
    """A block that was left out as corrupt is read again, when its rows have places."""
    patch.setattr(SkippedBlocks, "find_skipped", lambda self, blocks: ())


PLANTED: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    fault.__name__: fault
    for fault in (
        lose_a_wake_up,
        keep_what_failed,
        forget_who_has_closed,
        round_the_limit_down,
        serve_two_readers,
        take_late_results,
        leak_a_reference,
        leak_a_window,
        keep_a_stale_location,
        name_no_incarnation,
        restart_at_a_wrong_row,
        restart_a_slice_too_far,
        forget_what_polls_say,
        serve_incomplete_windows,
        deal_before_counting,
        forget_corruption,
    )
}
