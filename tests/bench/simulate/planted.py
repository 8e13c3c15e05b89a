"""Planted faults: each removes one precaution from the real code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from bench.simulation.actor import Actor
from windrow.pipeline.coordinator.buffered_windows import BufferedWindow
from windrow.pipeline.coordinator.core import CoordinatorCore
from windrow.pipeline.coordinator.driver import Driver
from windrow.pipeline.coordinator.failures import Failure
from windrow.pipeline.coordinator.requests import OpenRequest
from windrow.pipeline.coordinator.scheduling.events import Drop
from windrow.pipeline.coordinator.scheduling.scheduler import Scheduler
from windrow.pipeline.coordinator.scheduling.shard_tracker import ShardTracker
from windrow.pipeline.coordinator.shard_readers import ShardReaders
from windrow.pipeline.coordinator.skipped_blocks import SkippedBlocks
from windrow.pipeline.executors.window_fetch import WindowCollector
from windrow.pipeline.plan.cursor import Cursor, Place
from windrow.pipeline.plan.epoch_shape import EpochCounts
from windrow.pipeline.plan.window_budget import Budget
from windrow.shuffle.order.shard_assignment import ShardAssignment

__all__ = ["PLANTED"]


def lose_wake_up(patch: pytest.MonkeyPatch) -> None:
    """The coordinator ignores the heartbeats of a shard that was silent for long."""
    heartbeat = ShardTracker.heartbeat

    def heartbeat_unless_silent(self: ShardTracker, shard: int, now: float) -> None:
        if not self.is_silent(shard, now):
            heartbeat(self, shard, now)

    patch.setattr(ShardTracker, "heartbeat", heartbeat_unless_silent)


def serve_two_readers(patch: pytest.MonkeyPatch) -> None:
    """A reader that has been replaced gets the same rows as its successor."""

    def is_current(self: ShardReaders, request: OpenRequest) -> bool:
        opened = self.opened.get(request.shard)
        return opened is None or opened.cursor.epoch == request.cursor.epoch

    patch.setattr(ShardReaders, "is_current", is_current)


def take_late_results(patch: pytest.MonkeyPatch) -> None:
    """The result of an abandoned attempt is delivered in addition to that of the next attempt."""
    take = Driver._record_result

    def take_any(self: Driver, task: Any, report: Any, output: Any, lane: str) -> None:
        held = self._buffered.get((task.work.epoch, task.work.window))
        if held is not None and held.attempt != task.work.attempt:
            held.add(task, replace(report, unpacked_bytes=None), output, 1)
        take(self, task, report, output, lane)

    patch.setattr(Driver, "_record_result", take_any)


def leak_reference(patch: pytest.MonkeyPatch) -> None:
    """A map output that arrives after its slice was acknowledged is held until the window ends."""

    def take(self: BufferedWindow, task: Any, report: Any, output: Any, rows: int) -> None:
        self.tables.pop(task.work.part, None)
        (self.tables if task.ordering is None else self.outputs)[task.work.part] = output

    patch.setattr(BufferedWindow, "add", take)


def leak_window(patch: pytest.MonkeyPatch) -> None:
    """A window that every shard has acknowledged is released by the scheduler but held by the driver."""
    drop = Driver._drop

    def keep(self: Driver, instruction: Drop) -> None:
        if instruction.slices is not None or instruction.rebuild:
            drop(self, instruction)

    patch.setattr(Driver, "_drop", keep)


def keep_stale_location(patch: pytest.MonkeyPatch) -> None:
    """Map outputs of an abandoned attempt, or of a dead coordinator, count as those of the next."""

    def add(self: WindowCollector, reply: Any, attempt: object) -> None:
        self._reply = reply
        self.outputs.update(reply.outputs)

    patch.setattr(WindowCollector, "add", add)


def reuse_attempt_names(patch: pytest.MonkeyPatch) -> None:
    """An attempt of a restarted coordinator has the same name as one of its predecessor."""
    drive = CoordinatorCore._ensure_driver

    def drive_unnamed(self: CoordinatorCore, batch_rows: int) -> Driver:
        driver = drive(self, batch_rows)
        self._incarnation = ""
        return driver

    patch.setattr(CoordinatorCore, "_ensure_driver", drive_unnamed)


def restart_at_wrong_row(patch: pytest.MonkeyPatch) -> None:
    """A restarted coordinator assigns a resumed epoch from its first row."""
    open_request = CoordinatorCore._open

    def open_at_start(self: CoordinatorCore, request: OpenRequest) -> Any:
        if self._environment.is_restarted():
            request = replace(request, cursor=Cursor(request.cursor.epoch))
        return open_request(self, request)

    patch.setattr(CoordinatorCore, "_open", open_at_start)


def restart_one_slice_too_far(patch: pytest.MonkeyPatch) -> None:
    """A restarted coordinator places a shard one slice too far."""
    acknowledge = CoordinatorCore._acknowledge

    def acknowledge_more(self: CoordinatorCore, driver: Driver, shard: int, place: Place) -> None:
        more = self._environment.is_restarted() and place.slice > 0
        acknowledge(self, driver, shard, replace(place, slice=place.slice + 1) if more else place)

    patch.setattr(CoordinatorCore, "_acknowledge", acknowledge_more)


def ignore_places_in_requests(patch: pytest.MonkeyPatch) -> None:
    """The place in a request is used only if the shard is unknown: a bug found by this simulation."""
    read_window = CoordinatorCore._read_window

    def read_window_without_place(self: CoordinatorCore, request: Any, place: Place, *rest: Any) -> Any:
        known = request.shard in self._acknowledged
        return read_window(self, request, Place(request.cursor.epoch, 0) if known else place, *rest)

    patch.setattr(CoordinatorCore, "_read_window", read_window_without_place)


def serve_incomplete_windows(patch: pytest.MonkeyPatch) -> None:
    """A shard that returns to a window gets only its remaining slices: a bug found by this simulation."""
    patch.setattr(Scheduler, "_drop_incomplete", lambda self: None)


def forget_closed_shards(patch: pytest.MonkeyPatch) -> None:
    """A restarted coordinator holds windows for shards that closed before: a bug found by this simulation."""
    patch.setattr(Actor, "is_restarted", lambda self: False)


def round_limit_down(patch: pytest.MonkeyPatch) -> None:
    """The minimum limit that the plan accepts may be one byte too low: a bug found by this simulation."""
    patch.setattr(
        Budget, "outputs_limit_bytes", property(lambda self: int(self.windows_limit_bytes / self.copies))
    )


def keep_failed_run(patch: pytest.MonkeyPatch) -> None:
    """A failed run holds its windows until the cycle collector runs: a bug found by this simulation."""

    def task_failed(self: Driver, failure: Failure) -> None:
        self.failure = self.failure or failure

    patch.setattr(Driver, "task_failed", task_failed)


def assign_before_counting(patch: pytest.MonkeyPatch) -> None:
    """Rows are assigned before the rows of later windows are counted."""

    def is_ordered(self: EpochCounts, window: int, assignment: ShardAssignment) -> bool:
        return self.first_row(window + 1) is not None

    patch.setattr(EpochCounts, "is_ordered", is_ordered)


def forget_corruption(patch: pytest.MonkeyPatch) -> None:
    """A block that was skipped as corrupt is read again when its rows are placed."""
    patch.setattr(SkippedBlocks, "find_skipped", lambda self, epoch, blocks: ())


PLANTED: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    fault.__name__: fault
    for fault in (
        lose_wake_up,
        keep_failed_run,
        forget_closed_shards,
        round_limit_down,
        serve_two_readers,
        take_late_results,
        leak_reference,
        leak_window,
        keep_stale_location,
        reuse_attempt_names,
        restart_at_wrong_row,
        restart_one_slice_too_far,
        ignore_places_in_requests,
        serve_incomplete_windows,
        assign_before_counting,
        forget_corruption,
    )
}
