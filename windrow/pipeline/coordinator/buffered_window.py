"""A driver's buffer of one window's map outputs, and the replies to shards from it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from windrow.pipeline.plan.window_places import WindowPlaces
from windrow.pipeline.statistics.phases import Interval
from windrow.shuffle.order.runs import WindowRuns

__all__ = ["BufferedWindow", "WindowReply"]


@dataclass(frozen=True)
class WindowReply:
    """What is ready of a window for one shard; parts of another ``attempt`` at it are void.

    ``outputs`` holds by part the handle of each slice of the shard's destination, None where every shard
    has acknowledged the slice. Where rows are counted as they are read, ``starts`` has the first row in
    the epoch of this window and of each later one that holds rows of its last step. ``corrupt`` has the
    blocks skipped so far: all in this window and earlier ones, possibly more.
    """

    attempt: int
    parts: int  # of the window
    layout: WindowRuns | None  # None until the runs are known
    outputs: dict[int, list[Any]]
    user_warnings: tuple[str, ...] = ()
    starts: tuple[tuple[int, int], ...] = ()
    corrupt: tuple[int, ...] = ()
    row_bytes: float = 0.0  # the largest mean of any part; 0 while nothing is ready
    history: Sequence[Interval] = ()  # once it is complete, what the time until then went to


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

    def add(
        self,
        part: int,
        output: Any,
        *,
        ordered: bool,
        row_bytes: float = 0.0,
        keys: tuple[pa.Table, ...] = (),
    ) -> None:
        """Hold a task's output; a placed output replaces the tables it was made of."""
        self.row_bytes = max(self.row_bytes, row_bytes)
        self.tables.pop(part, None)
        if not ordered:
            self.tables[part] = output
            self.keys[part] = keys
            return
        self.outputs[part] = output
        _clear_slices(output, self.released)

    def release(self, slices: Collection[int]) -> None:
        """Release slices."""
        self.released.update(slices)
        for destinations in self.outputs.values():
            _clear_slices(destinations, slices)

    def reply(self, shard: int, parts: int, have: Collection[int]) -> WindowReply:
        """The reply to a shard, without the parts that it has."""
        if self.places is None:
            return WindowReply(attempt=-1, parts=parts, layout=None, outputs={})
        layouts = self.places.layouts
        destination = next(i for i, layout in enumerate(layouts) if shard in layout.shards)
        outputs = {part: slices[destination] for part, slices in self.outputs.items() if part not in have}
        return WindowReply(self.attempt, parts, layouts[destination], outputs, row_bytes=self.row_bytes)


def _clear_slices(destinations: list[list[Any]], slices: Collection[int]) -> None:
    for handles in destinations:
        for number in slices:
            handles[number] = None
