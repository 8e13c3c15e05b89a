"""What a system reports about its run: spans for the timeline, the memory estimate, the object store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bench.system.ray_cluster import ObjectStoreUse

_VISIBLE_SECONDS = 0.005
TOLERANCE_BYTES = 64 * 2**20


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


"""Accepted excess of the peak over the estimate, idle memory excluded.

The estimate covers rows. In addition, the allocators of Arrow, NumPy and Ray retain freed
pages for a while, modules are imported after the idle memory was measured, and stacks
and small objects of the interpreters grow. None of this depends on the size of the data.
"""


@dataclass(frozen=True)
class MemoryEstimate:
    """The parts of the memory budget that ``explain`` reports before the run.

    ``windows`` is the number of windows held at the same time, ``blocks_per_window`` the mean.
    """

    total_bytes: int
    windows_bytes: int
    runs_bytes: int
    tasks_bytes: int
    limit_bytes: int
    windows: int
    blocks_per_window: float

    def is_exceeded_by(self, peak_bytes: int) -> bool:
        """Whether a peak exceeds the estimate by more than the tolerance."""
        return peak_bytes > self.total_bytes + TOLERANCE_BYTES

    def __str__(self) -> str:
        mib = [
            f"{size / 2**20:,.0f}"
            for size in (self.total_bytes, self.windows_bytes, self.runs_bytes, self.tasks_bytes)
        ]
        return f"{mib[0]} MiB = windows {mib[1]} + runs {mib[2]} + tasks {mib[3]}"


def read_estimate(explanation: Any) -> MemoryEstimate:
    """Read the estimate from a windrow ``Explanation``."""
    budget = explanation.budget
    return MemoryEstimate(
        total_bytes=budget.total_bytes,
        windows_bytes=budget.windows_bytes,
        runs_bytes=budget.runs_bytes,
        tasks_bytes=budget.tasks_bytes,
        limit_bytes=budget.limit_bytes,
        windows=budget.windows,
        blocks_per_window=explanation.blocks / max(1, explanation.windows),
    )


@dataclass(frozen=True)
class RunDetails:
    """Spans for the timeline, windrow's memory estimate, and the use of Ray's object store."""

    spans: Sequence[Span] = ()
    estimate: MemoryEstimate | None = None
    store: ObjectStoreUse | None = None
