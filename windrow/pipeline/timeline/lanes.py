"""Arranges the spans of a run in lanes: windows, tasks, what trainers' processes do, and the trainers themselves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from windrow.pipeline.statistics.phases import COLLATE, DEVICE, TASK_PHASES, Span

# the groups of lanes, in the order in which rows flow, and the kinds of their spans
GROUPS = {
    "source": ("source",),
    "window": ("window",),
    "task": ("map", "read", "place"),
    "transfer": ("transfer",),
    "placing": ("reduce",),
    "batches": (COLLATE, DEVICE),
    "trainer": ("work", "wait"),
}
# those whose spans are cut by phase
CUT_GROUPS = ("task", "placing")


@dataclass(frozen=True)
class Lane:
    """One row of a timeline: spans that do not overlap."""

    group: str
    name: str
    spans: tuple[Span, ...]


def merge_spans(tasks: Iterable[Span], trainers: Iterable[Iterable[Span]]) -> tuple[Span, ...]:
    """All spans of a run in order of time, without those that two sources know."""
    found = {*tasks, *(span for spans in trainers for span in spans)}
    return tuple(sorted(found, key=lambda span: (span.start_time, span.stop_time, span.kind, span.lane)))


def describe_sources(spans: Iterable[Span]) -> list[Span]:
    """Of a mixture, a span for each window of a source: while its tasks waited and ran; the lane is the source."""
    found = _find_borders(span for span in spans if span.source)
    return [
        Span("source", epoch, window, start, stop, source, source=source)
        for (epoch, window, source), (start, stop) in found.items()
    ]


def describe_windows(spans: Iterable[Span]) -> list[Span]:
    """A span for each window: from the submission of its first task until the last trainer is done with it.

    Of a mixture, windows are its rounds, whose rows come from windows of its sources.
    """
    # a trainer waits for the window after the one that it has
    found = _find_borders(span for span in spans if not span.source and span.kind != "wait")
    windows = [
        Span("window", epoch, window, start, stop, "windows")
        for (epoch, window, _), (start, stop) in found.items()
    ]
    return sorted(windows, key=lambda span: (span.start_time, span.epoch, span.window))


def _find_borders(spans: Iterable[Span]) -> dict[tuple[int, int, str], tuple[float, float]]:
    """By epoch, window and source: when the first of its spans was submitted or began, and when the last one ended."""
    found: dict[tuple[int, int, str], tuple[float, float]] = {}
    for span in spans:
        key, start = (
            (span.epoch, span.window, span.source),
            min(span.start_time, span.submit_time or span.start_time),
        )
        first, last = found.get(key, (start, span.stop_time))
        found[key] = min(start, first), max(span.stop_time, last)
    return found


def pack_lanes(spans: Iterable[Span], name: str) -> list[Span]:
    """Assign spans that overlap to as few lanes as possible, named ``"name 1"``, ``"name 2"`` and so on.

    >>> overlapping = [Span("map", 0, 0, start, start + 2.0, "a") for start in (0.0, 1.0, 2.0)]
    >>> [span.lane for span in pack_lanes(overlapping, "task")]
    ['task 1', 'task 2', 'task 1']
    """
    ends: list[float] = []
    packed = []
    for span in sorted(spans, key=lambda one: one.start_time):
        lane = next((at for at, end in enumerate(ends) if end <= span.start_time), len(ends))
        if lane == len(ends):
            ends.append(0.0)
        ends[lane] = span.stop_time
        packed.append(span._replace(lane=f"{name} {lane + 1}"))
    return packed


def arrange(spans: Sequence[Span]) -> list[Lane]:
    """The lanes of a timeline, from sources to trainers; a trainer keeps its lane, what else overlaps is packed."""
    lanes: list[Lane] = []
    for group, kinds in GROUPS.items():
        chosen = describe_windows(spans) if group == "window" else [s for s in spans if s.kind in kinds]
        if group == "trainer":
            chosen = [span._replace(lane=span.lane.replace("shard", "trainer")) for span in chosen]
        elif group == "source":
            by_source: dict[str, list[Span]] = defaultdict(list)
            for span in describe_sources(spans):
                by_source[span.source].append(span)
            packed = (pack_lanes(of_source, name) for name, of_source in by_source.items())
            # mostly one lane a source
            chosen = [span._replace(lane=span.lane.removesuffix(" 1")) for one in packed for span in one]
        else:
            chosen = pack_lanes(chosen, group)
        by_lane: dict[str, list[Span]] = defaultdict(list)
        for span in chosen:
            by_lane[span.lane].append(span)
        names = sorted(by_lane, key=lambda name: (len(name), name))
        lanes += [Lane(group, name, tuple(by_lane[name])) for name in names]
    return lanes


def cut_phases(span: Span) -> list[tuple[str, float, float]]:
    """What a task or the placing of a run did, as consecutive intervals of its span: name, start and stop.

    A task reads, decodes and groups a few columns at a time, so its phases alternate. Their lengths are measured; their
    order within the span is that of a row's way: of a run, its rows are placed, transformed and converted to batches.

    >>> cut_phases(Span("map", 0, 0, 0.0, 4.0, "a", phases=(("decode", 1.0), ("storage", 3.0))))
    [('storage', 0.0, 3.0), ('decode', 3.0, 4.0)]
    """
    seconds = dict(span.phases)
    # those of a run come in their order
    first = () if span.kind == "reduce" else TASK_PHASES
    names = [*first, *(name for name in seconds if name not in first)]
    total = sum(seconds.values())
    found, start = [], span.start_time
    for name in names:
        if seconds.get(name, 0.0) > 0:
            stop = start + seconds[name] / total * (span.stop_time - span.start_time)
            found.append((name, start, stop))
            start = stop
    return found
