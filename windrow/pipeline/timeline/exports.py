"""Exports of a timeline: the Chrome trace format, which Perfetto and chrome://tracing open, and OpenTelemetry spans."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from windrow.core.errors import PlanError
from windrow.core.optional_dependencies import require
from windrow.pipeline.statistics.phases import Span
from windrow.pipeline.timeline.lanes import CUT_GROUPS, Lane, cut_phases

_MICROSECONDS = 1e6
_NAMES = {
    "map": "map task",
    "read": "read task",
    "place": "place task",
    "reduce": "place rows",
    "collate": "make a batch",
    "device": "copy to the device",
    "work": "train",
    "wait": "wait for a batch",
}
_NANOSECONDS = 10**9


def format_trace(lanes: Sequence[Lane], origin: float, facts: dict[str, Any]) -> str:
    """Format lanes as a trace that begins at ``origin``; ``facts`` go to its metadata."""
    events = [*_name_lanes(lanes), *_list_events(lanes, origin), *_count_waiting(lanes, origin)]
    trace = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"start_time": origin, **facts}}
    return json.dumps(trace, separators=(",", ":"))


def _number(lanes: Sequence[Lane]) -> Iterator[tuple[int, int, Lane]]:
    """Number the groups as processes and the lanes as threads."""
    groups = list(dict.fromkeys(lane.group for lane in lanes))
    for thread, lane in enumerate(lanes, 1):
        yield groups.index(lane.group) + 1, thread, lane


def _name_lanes(lanes: Sequence[Lane]) -> Iterator[dict[str, Any]]:
    named = set()
    for process, thread, lane in _number(lanes):
        place = {"ph": "M", "pid": process, "tid": thread}
        if process not in named:
            named.add(process)
            yield {**place, "name": "process_name", "args": {"name": lane.group}}
            yield {**place, "name": "process_sort_index", "args": {"sort_index": process}}
        yield {**place, "name": "thread_name", "args": {"name": lane.name}}
        yield {**place, "name": "thread_sort_index", "args": {"sort_index": thread}}


def _list_events(lanes: Sequence[Lane], origin: float) -> Iterator[dict[str, Any]]:
    for process, thread, lane in _number(lanes):
        for span in lane.spans:
            place = {"ph": "X", "pid": process, "tid": thread, "cat": lane.group}
            times = _format_times(span.start_time, span.stop_time, origin)
            yield {**place, **times, "name": _format_name(span), "args": _describe(span)}
            for name, start, stop in cut_phases(span) if lane.group in CUT_GROUPS else ():
                yield {**place, **_format_times(start, stop, origin), "name": name}


def _format_times(start: float, stop: float, origin: float) -> dict[str, float]:
    return {
        "ts": round((start - origin) * _MICROSECONDS, 1),
        "dur": round(max(0.0, stop - start) * _MICROSECONDS, 1),
    }


def _format_name(span: Span) -> str:
    if span.kind == "window":
        return f"epoch {span.epoch}, window {span.window}"
    if span.kind == "source":
        return f"{span.source}, window {span.window}"
    if span.kind == "wait" and span.phases:
        return f"wait: {max(span.phases, key=lambda pair: pair[1])[0]}"
    return _NAMES.get(span.kind, span.kind)


def _describe(span: Span) -> dict[str, Any]:
    facts: dict[str, Any] = {"epoch": span.epoch, "window": span.window}
    if span.source:
        facts["source"] = span.source
    if span.submit_time and span.submit_time < span.start_time:
        facts["seconds waiting to start"] = round(span.start_time - span.submit_time, 6)
    return {**facts, **{f"seconds of {name}": round(seconds, 6) for name, seconds in span.phases}}


def _count_waiting(lanes: Sequence[Lane], origin: float) -> Iterator[dict[str, Any]]:
    """A counter of the trainers that wait, which shows at once when devices are idle."""
    changes = []
    for lane in lanes:
        for span in lane.spans if lane.group == "trainer" else ():
            if span.kind == "wait":
                changes += [(span.start_time, 1), (span.stop_time, -1)]
    waiting = 0
    for moment, change in sorted(changes):
        waiting += change
        ts = round((moment - origin) * _MICROSECONDS, 1)
        yield {"ph": "C", "pid": 0, "ts": ts, "name": "trainers that wait", "args": {"trainers": waiting}}


def export_lanes(lanes: Sequence[Lane], tracer_provider: Any, title: str) -> int:
    """Export one span for the run, one below it for each window, and below those what was done for the window."""
    trace = require("opentelemetry.trace", "opentelemetry", "Timeline.export_spans()")
    if not callable(getattr(tracer_provider, "get_tracer", None)):
        raise PlanError(
            f"tracer_provider={tracer_provider!r} is not a tracer provider of OpenTelemetry: pass a TracerProvider of "
            "opentelemetry.sdk.trace with an exporter"
        )
    spans = [(lane, span) for lane in lanes for span in lane.spans]
    if not spans:
        return 0
    tracer = tracer_provider.get_tracer("windrow")
    start = min(span.start_time for _, span in spans)
    run = tracer.start_span("windrow run", start_time=_format(start), attributes={"windrow.summary": title})
    of_windows: dict[tuple[int, int, str], Any] = {}
    # windows come first, and the others refer to them
    for lane, span in spans:
        window = span.epoch, span.window, span.source
        parent = of_windows.get(window, run)
        attributes = {"windrow.epoch": span.epoch, "windrow.window": span.window, "windrow.lane": lane.name}
        attributes |= {"windrow.source": span.source} if span.source else {}
        attributes |= {f"windrow.{name}_seconds": seconds for name, seconds in span.phases}
        child = tracer.start_span(
            f"windrow {span.kind}",
            context=trace.set_span_in_context(parent),
            start_time=_format(span.start_time),
            attributes=attributes,
        )
        child.end(end_time=_format(span.stop_time))
        if span.kind in ("source", "window"):
            of_windows[window] = child
    run.end(end_time=_format(max(span.stop_time for _, span in spans)))
    return len(spans) + 1


def _format(seconds: float) -> int:
    return int(seconds * _NANOSECONDS)
