"""The map outputs that the driver holds for shards, window by window, and the replies made of them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from windrow.pipeline.coordinator.requests import WindowReply
from windrow.pipeline.coordinator.scheduling.events import Drop
from windrow.pipeline.coordinator.scheduling.scheduler import Scheduler
from windrow.pipeline.coordinator.scheduling.shard_tracker import Key
from windrow.pipeline.plan.window_places import WindowPlaces
from windrow.pipeline.tasks.task import Task, TaskReport, Work
from windrow.shuffle.kernels.map_output import PLACE_BYTES
from windrow.shuffle.order.runs import WindowRuns
from windrow.shuffle.order.step_runs import StepRuns


@dataclass
class BufferedWindow:
    """The map outputs of one window."""

    attempt: int
    # where rows go; None until the runs are known
    places: WindowPlaces | None = None
    # with a sort, by part the keys of its blocks, until it is known where rows go
    keys: dict[int, tuple[pa.Table, ...]] = field(default_factory=dict)
    # by part: the handle of what was read but not placed yet
    tables: dict[int, Any] = field(default_factory=dict)
    # by part: the handle of each slice of each destination
    outputs: dict[int, list[list[Any]]] = field(default_factory=dict)
    # the slices that every shard has acknowledged
    released: set[int] = field(default_factory=set)
    # the largest mean of any part
    row_bytes: float = 0.0

    def add(self, task: Task, report: TaskReport, output: Any, rows: int) -> None:
        """Hold a task's output, of so many rows; a placed output replaces the tables it was made of."""
        part, ordered = task.work.part, task.ordering is not None
        # what a row takes once it is placed: its place is not part of it
        row_bytes = (report.unpacked_bytes or 0) / max(1, rows) - PLACE_BYTES * ordered
        self.row_bytes = max(self.row_bytes, row_bytes)
        self.tables.pop(part, None)
        if not ordered:
            self.tables[part] = output
            self.keys[part] = report.keys
            return
        self.outputs[part] = output
        _clear_slices(output, self.released)

    def release(self, slices: Collection[int]) -> None:
        self.released.update(slices)
        for destinations in self.outputs.values():
            _clear_slices(destinations, slices)


class BufferedWindows(dict[Key, BufferedWindow]):
    """All windows of a run that are held, by epoch and window."""

    def begin(self, work: Work, first_kept: int) -> BufferedWindow:
        """The window that a task is about to add to; slices before ``first_kept`` have been acknowledged."""
        key = work.epoch, work.window
        if key not in self:
            # a window that is prepared again drops slices that every shard has acknowledged
            self[key] = BufferedWindow(work.attempt, released=set(range(first_kept)))
        return self[key]

    def add(self, task: Task, report: TaskReport, output: Any, rows: int) -> None:
        """Hold a task's output, of so many rows; that of an abandoned attempt is not needed."""
        buffered = self.get((task.work.epoch, task.work.window))
        if buffered is not None and buffered.attempt == task.work.attempt:
            buffered.add(task, report, output, rows)

    def drop(self, instruction: Drop) -> None:
        """Release a window, or slices of it."""
        key = instruction.epoch, instruction.window
        if instruction.slices is None:
            self.pop(key, None)
        elif key in self:
            self[key].release(instruction.slices)


def reply_window(
    shard: int,
    key: Key,
    scheduler: Scheduler,
    buffered: BufferedWindow | None,
    have: Collection[int],
    corrupt: tuple[int, ...] | None,
) -> WindowReply:
    """The reply to a shard that fetches a window, of which it has some parts.

    ``corrupt`` holds the skipped blocks where rows are counted as they are read, else None.
    """
    epoch, window = key
    counts = scheduler.epochs.counts(epoch)
    parts, assignment = len(counts.shape.windows[window]), scheduler.epochs.opened_assignment(epoch)
    if buffered is None or buffered.places is None:
        return WindowReply(attempt=-1, parts=parts, layout=None, outputs={})
    layouts = [layout for layout in buffered.places.layouts if isinstance(layout, (WindowRuns, StepRuns))]
    destination = next(i for i, layout in enumerate(layouts) if shard in layout.shards)
    outputs = {part: slices[destination] for part, slices in buffered.outputs.items() if part not in have}
    reply = WindowReply(buffered.attempt, parts, layouts[destination], outputs, row_bytes=buffered.row_bytes)
    if corrupt is None or assignment is None:
        return reply
    return replace(reply, starts=counts.starts(window, assignment), corrupt=corrupt)


def _clear_slices(destinations: list[list[Any]], slices: Collection[int]) -> None:
    for handles in destinations:
        for number in slices:
            handles[number] = None
