"""What a driver holds of one window, and what a shard may have of it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from windrow.shuffle.order.runs import WindowRuns

__all__ = ["BufferedWindow", "WindowReply"]


@dataclass(frozen=True)
class WindowReply:
    """What a shard may have of a window by now.

    Attributes
    ----------
    attempt
        Which try at the window; parts of another one are void.
    parts
        How many parts the window has.
    layout
        Its runs for this shard's destination; None until they are known.
    outputs
        By part: the handle of each slice of this destination; None where every shard
        has passed the slice.
    look_out
        What users should know, one line each.
    starts
        Where rows are counted as they are read: this window and those behind it that hold rows
        of its last step, each with the row of the epoch at which it begins.
    corrupt
        The blocks that are left out as corrupt by now: all of this window and those before, and
        perhaps more.
    row_bytes
        What a row takes, at most on average over a part of the window; 0 while nothing is ready.
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
    """The outputs of one window.

    Attributes
    ----------
    attempt
        Which try at the window.
    layouts
        Its runs, one layout for each destination; None until they are known.
    tables
        By part: the handle of what was read and is not placed yet.
    outputs
        By part: the handle of each slice of each destination.
    gone
        The slices that every shard has passed.
    row_bytes
        What a row takes, at most on average over a part.
    """

    attempt: int
    layouts: tuple[WindowRuns, ...] | None = None
    tables: dict[int, Any] = field(default_factory=dict)
    outputs: dict[int, list[list[Any]]] = field(default_factory=dict)
    released: set[int] = field(default_factory=set)
    row_bytes: float = 0.0

    def add(self, part: int, output: Any, *, ordered: bool, row_bytes: float = 0.0) -> None:
        """Hold a task's output; a placed one takes the place of the tables it was made of."""
        self.row_bytes = max(self.row_bytes, row_bytes)
        self.tables.pop(part, None)
        if not ordered:
            self.tables[part] = output
            return
        self.outputs[part] = output
        _clear_slices(output, self.released)

    def release(self, slices: Collection[int]) -> None:
        """Let go of slices."""
        self.released.update(slices)
        for destinations in self.outputs.values():
            _clear_slices(destinations, slices)

    def reply(self, shard: int, parts: int, have: Collection[int]) -> WindowReply:
        """What a shard may have, beyond the parts that it has."""
        if self.layouts is None:
            return WindowReply(attempt=-1, parts=parts, layout=None, outputs={})
        destination = next(i for i, layout in enumerate(self.layouts) if shard in layout.shards)
        outputs = {part: slices[destination] for part, slices in self.outputs.items() if part not in have}
        return WindowReply(self.attempt, parts, self.layouts[destination], outputs, row_bytes=self.row_bytes)


def _clear_slices(destinations: list[list[Any]], slices: Collection[int]) -> None:
    for handles in destinations:
        for released in slices:
            handles[released] = None
