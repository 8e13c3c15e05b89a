"""Hands the spans of a timeline to an OpenTelemetry tracer provider, which the caller has set up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from windrow.core.errors import PlanError
from windrow.core.optional_dependencies import require
from windrow.pipeline.timeline.lanes import Lane

__all__ = ["export_lanes"]

_NANOSECONDS = 10**9


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
    of_windows: dict[tuple[int, int], Any] = {}
    # windows come first, and the others refer to them
    for lane, span in spans:
        parent = of_windows.get((span.epoch, span.window), run)
        attributes = {"windrow.epoch": span.epoch, "windrow.window": span.window, "windrow.lane": lane.name}
        attributes |= {f"windrow.{name}_seconds": seconds for name, seconds in span.phases}
        child = tracer.start_span(
            f"windrow {span.kind}",
            context=trace.set_span_in_context(parent),
            start_time=_format(span.start_time),
            attributes=attributes,
        )
        child.end(end_time=_format(span.stop_time))
        if span.kind == "window":
            of_windows[span.epoch, span.window] = child
    run.end(end_time=_format(max(span.stop_time for _, span in spans)))
    return len(spans) + 1


def _format(seconds: float) -> int:
    return int(seconds * _NANOSECONDS)
