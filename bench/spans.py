"""Spans of the timeline; those too short to be visible are merged."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Span", "SpanLog", "pack_lanes", "shift_spans"]

_VISIBLE_SECONDS = 0.005


@dataclass(frozen=True)
class Span:
    """A time interval in one lane.

    ``kind`` is "map", "reduce", "train" or "wait"; ``window`` is (epoch, window).
    """

    kind: str
    window: tuple[int, int]
    start: float
    end: float
    lane: str


class SpanLog:
    """Merges a trainer's batches into few spans: waits of at least 5 ms, and training."""

    def __init__(self, lane: str) -> None:
        self._lane = lane
        self._spans: list[Span] = []
        self._training: tuple[int, float, float] | None = None

    def add(self, epoch: int, requested: float, got: float, done: float) -> None:
        """Record the times at which a batch was requested, received and processed."""
        if got - requested < _VISIBLE_SECONDS and self._training is not None and self._training[0] == epoch:
            self._training = (epoch, self._training[1], done)
            return
        self._close()
        self._spans.append(Span("wait", (epoch, 0), requested, got, self._lane))
        self._training = (epoch, got, done)

    def spans(self) -> list[Span]:
        """All spans so far."""
        self._close()
        return list(self._spans)

    def _close(self) -> None:
        if self._training is not None:
            epoch, start, end = self._training
            self._spans.append(Span("train", (epoch, 0), start, end, self._lane))
        self._training = None


def shift_spans(spans: Iterable[Span], origin: float) -> list[Span]:
    """Shift spans to a clock that is 0 at ``origin``."""
    return [Span(s.kind, s.window, s.start - origin, s.end - origin, s.lane) for s in spans]


def pack_lanes(spans: Iterable[Span]) -> list[Span]:
    """Assign concurrent spans to as few lanes as possible, regardless of the worker.

    Reading goes into lanes "read 1", "read 2", …, placing into "place 1", …; trainers
    keep their lanes.
    """
    ends: dict[str, list[float]] = {"read": [], "place": []}
    packed: list[Span] = []
    for span in sorted(spans, key=lambda one: one.start):
        if span.kind not in ("map", "reduce"):
            packed.append(span)
            continue
        name = "read" if span.kind == "map" else "place"
        lane = _take_lane(ends[name], span)
        packed.append(Span(span.kind, span.window, span.start, span.end, f"{name} {lane + 1}"))
    return packed


def _take_lane(ends: list[float], span: Span) -> int:
    """Take the first lane that is free at the start of a span, until its end."""
    for lane, end in enumerate(ends):
        if end <= span.start:
            ends[lane] = span.end
            return lane
    ends.append(span.end)
    return len(ends) - 1
