"""Collects the map outputs of one window as they become ready."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from windrow.pipeline.coordinator.buffered_window import WindowReply
from windrow.pipeline.executors.base import WindowData
from windrow.shuffle.kernels.place_rows import MapOutputs
from windrow.shuffle.order.runs import WindowRuns

__all__ = ["WindowCollector"]


class WindowCollector:
    """The outputs of one window's latest attempt that have arrived so far, by input split (``part``)."""

    def __init__(self) -> None:
        self._attempt: object = None
        self._parts: int | None = None
        self.layout: WindowRuns | None = None
        self.outputs: dict[int, list[Any]] = {}
        self.starts: tuple[tuple[int, int], ...] = ()
        self.corrupt: tuple[int, ...] = ()
        self.row_bytes = 0.0

    def add(self, reply: WindowReply, attempt: object) -> None:
        """Add the outputs of a reply; those of an earlier attempt are discarded."""
        self._parts = reply.parts
        if attempt != self._attempt:
            self._attempt, self.outputs = attempt, {}
        self.layout = reply.layout
        self.starts = reply.starts
        self.corrupt = reply.corrupt
        self.row_bytes = reply.row_bytes
        self.outputs.update(reply.outputs)

    @property
    def complete(self) -> bool:
        """Whether the outputs of every part have arrived."""
        return self._parts is not None and len(self.outputs) == self._parts

    def slices(self) -> list[list[Any]]:
        """Return the handles by slice, in the order of the parts."""
        handles = [self.outputs[part] for part in sorted(self.outputs)]
        return [list(of_slice) for of_slice in zip(*handles, strict=True)]

    def window(self, user_warnings: Sequence[str]) -> WindowData:
        """Return the complete window; its handles must have been replaced by map outputs."""
        slices = [MapOutputs(chain.from_iterable(filter(None, of_slice))) for of_slice in self.slices()]
        return WindowData(self.layout, slices, user_warnings, self.starts, self.corrupt, self.row_bytes)
