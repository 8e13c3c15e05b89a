"""A driver's buffer of one window's map outputs, and the replies to shards from it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from windrow.shuffle.order.runs import WindowRuns

__all__ = ["BufferedWindow", "WindowReply"]


@dataclass(frozen=True)
class WindowReply:
    """What is ready of a window for one shard.

    Attributes
    ----------
    attempt
        The attempt at the window; parts of another attempt are void.
    parts
        The number of parts of the window.
    layout
        The window's runs for this shard's destination; None until they are known.
    outputs
        By part: the handle of each slice of this destination; None where every shard
        has acknowledged the slice.
    user_warnings
        Warnings for the user, one line each.
    starts
        Where rows are counted as they are read: the first row in the epoch of this window and of
        each later one that holds rows of its last step.
    corrupt
        The blocks skipped as corrupt so far: all in this window and earlier ones, possibly more.
    row_bytes
        Bytes per row: the largest mean of any part of the window; 0 while nothing is ready.
    """

    attempt: int
    parts: int
    layout: WindowRuns | None
    outputs: dict[int, list[Any]]
    user_warnings: tuple[str, ...] = ()
    starts: tuple[tuple[int, int], ...] = ()
    corrupt: tuple[int, ...] = ()
    row_bytes: float = 0.0


@dataclass
class BufferedWindow:
    """The map outputs of one window.

    Attributes
    ----------
    attempt
        The attempt at the window.
    layouts
        The window's runs: one layout per destination; None until they are known.
    tables
        By part: the handle of what was read but not placed yet.
    outputs
        By part: the handle of each slice of each destination.
    released
        The slices that every shard has acknowledged.
    row_bytes
        Bytes per row: the largest mean of any part.
    """

    attempt: int
    layouts: tuple[WindowRuns, ...] | None = None
    tables: dict[int, Any] = field(default_factory=dict)
    outputs: dict[int, list[list[Any]]] = field(default_factory=dict)
    released: set[int] = field(default_factory=set)
    row_bytes: float = 0.0

    def add(self, part: int, output: Any, *, ordered: bool, row_bytes: float = 0.0) -> None:
        """Hold a task's output; a placed output replaces the tables it was made of."""
        self.row_bytes = max(self.row_bytes, row_bytes)
        self.tables.pop(part, None)
        if not ordered:
            self.tables[part] = output
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
        if self.layouts is None:
            return WindowReply(attempt=-1, parts=parts, layout=None, outputs={})
        destination = next(i for i, layout in enumerate(self.layouts) if shard in layout.shards)
        outputs = {part: slices[destination] for part, slices in self.outputs.items() if part not in have}
        return WindowReply(self.attempt, parts, self.layouts[destination], outputs, row_bytes=self.row_bytes)


def _clear_slices(destinations: list[list[Any]], slices: Collection[int]) -> None:
    for handles in destinations:
        for number in slices:
            handles[number] = None
