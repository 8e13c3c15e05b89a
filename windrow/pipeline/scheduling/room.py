"""What may be held: the limit, and what tasks turn out to take."""

from __future__ import annotations

from windrow.core.sizes import format_bytes
from windrow.pipeline.scheduling.events import Finished, Limits, Part
from windrow.pipeline.scheduling.window import WindowState

__all__ = ["Room"]

# Columns that transforms add, and text that a dictionary holds once, make rows some times as large.
_UNMEASURED_GROWTH = 16


class Room:
    """The memory of a run, as far as it can be known without looking.

    Parameters
    ----------
    limits
        What may be held.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._expected_bytes = self._measured_bytes = 0
        self._expected_unpacked = self._measured_unpacked = 0

    @property
    def limit_bytes(self) -> int:
        """What outputs may hold."""
        return self._limits.memory_bytes - int(self._limits.beside_bytes * (self.growth - 1))

    @property
    def growth(self) -> float:
        """How many times what was expected rows take that tasks have put out so far, 1 or more.

        As they are in runs, batches and decoded blocks: how far words could be packed changes nothing there.
        """
        return max(1.0, self._measured_unpacked / max(1, self._expected_unpacked))

    @property
    def held_growth(self) -> float:
        """How many times what was expected tasks have put out so far, 1 or more."""
        return max(1.0, self._measured_bytes / max(1, self._expected_bytes))

    def fits(self, held_bytes: int) -> bool:
        """Whether so much may be held now."""
        return held_bytes <= self.limit_bytes

    def can_grow(self, held_bytes: int, tasks: int) -> bool:
        """Whether so many tasks may hold so much, of which more may come out than is expected.

        Until one that puts out anything has been measured, what is begun could turn out not to fit, and
        there is no taking it back.
        """
        limits = self._limits
        if limits.exact or self._measured_bytes:
            return True
        idle_bytes = limits.blocks_bytes * (limits.slots - tasks) // limits.slots
        beside = (limits.beside_bytes - idle_bytes) * (_UNMEASURED_GROWTH - 1)
        return held_bytes * _UNMEASURED_GROWTH + beside <= limits.memory_bytes

    def measure(self, part: Part, finished: Finished) -> None:
        """Note what a task was expected to put out, and what it did."""
        measured = sum(finished.slice_bytes)
        self._expected_bytes += part.size_bytes
        self._measured_bytes += measured
        self._expected_unpacked += part.size_bytes if part.unpacked_bytes is None else part.unpacked_bytes
        self._measured_unpacked += measured if finished.unpacked_bytes is None else finished.unpacked_bytes

    def expect(self, size_bytes: int) -> int:
        """What a task will put out, judged by how far others have exceeded what was expected."""
        if self._measured_bytes <= self._expected_bytes:
            return size_bytes
        return size_bytes * self._measured_bytes // max(1, self._expected_bytes)

    def refuse(self, window: WindowState) -> str:
        """Say that a window turned out not to fit."""
        limit, expected = max(0, self.limit_bytes), window.expected_bytes
        share = len(window.parts) * limit // max(expected, 1)
        fitting = f". About {share} of its {len(window.parts)} parts would fit:" if share else ":"
        return (
            f"window {window.window} of epoch {window.epoch} takes {format_bytes(expected)} in memory, "
            f"as measured on its first blocks; {format_bytes(limit)} are free for windows"
            f"{fitting} ask for smaller windows with "
            "window(bytes_per_window=...), or raise options(memory_limit=...)"
        )
