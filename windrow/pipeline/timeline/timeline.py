"""The timeline of a run, as a value: windows across time, what every stage did, and when trainers were idle."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from windrow.core.cached_properties import cached_property
from windrow.core.errors import PlanError
from windrow.core.notebook_html import format_paragraph, format_value
from windrow.core.terminal_text import format_count
from windrow.pipeline.statistics.phases import Span
from windrow.pipeline.timeline.draw import draw_html, draw_timeline
from windrow.pipeline.timeline.exports import format_trace
from windrow.pipeline.timeline.lanes import Lane, arrange

_PICTURES = (".png", ".svg", ".pdf")


@dataclass(frozen=True)
class Timeline:
    """When each window was read, shuffled and consumed, and when trainers waited.

    `Shard.timeline` and `DatasetPipeline.timeline` return it. It holds the latest 20,000 spans of tasks and as many of
    trainers, so the first windows of a long run drop out.

    Attributes
    ----------
    spans
        All of them, in order of time.

    Examples
    --------
    >>> import windrow
    >>> pipe = windrow.range(1_000).window(blocks_per_window=1).repeat(2).random_shuffle_each_window(seed=7)
    >>> for batch in pipe.iter_batches(batch_size=100):
    ...     pass
    >>> timeline = pipe.timeline()
    >>> timeline.save("run.json")
    >>> sorted({span.kind for span in timeline.spans} & {"map", "reduce", "work"})
    ['map', 'reduce', 'work']
    """

    spans: tuple[Span, ...] = field(repr=False)

    @property
    def start_time(self) -> float:
        """Unix time at which the first task was submitted or the first trainer began, in seconds."""
        return min(
            (min(span.start_time, span.submit_time or span.start_time) for span in self.spans), default=0.0
        )

    @property
    def stop_time(self) -> float:
        """Unix time of the last stop, in seconds."""
        return max((span.stop_time for span in self.spans), default=0.0)

    @property
    def idle(self) -> Mapping[int, float]:
        """By shard: the share of its time, from 0 to 1, that its trainer, and so its GPU, waited for batches."""
        seconds: dict[int, dict[str, float]] = {}
        for span in self.spans:
            if span.kind in ("work", "wait"):
                own = seconds.setdefault(int(span.lane.rpartition(" ")[2]), {"work": 0.0, "wait": 0.0})
                own[span.kind] += span.stop_time - span.start_time
        return {shard: own["wait"] / max(1e-12, sum(own.values())) for shard, own in sorted(seconds.items())}

    @cached_property
    def lanes(self) -> tuple[Lane, ...]:
        """The rows of the picture: windows, tasks, transfers, placing, batches and trainers."""
        return tuple(arrange(self.spans))

    def __str__(self) -> str:
        windows = len({(span.epoch, span.window) for span in self.spans})
        tasks = sum(span.kind in ("map", "read", "place") for span in self.spans)
        idle = self.idle
        waits = (
            f"idle {sum(idle.values()) / len(idle):.1%} of the time, the start included"
            if idle
            else "none has read yet"
        )
        seconds = self.stop_time - self.start_time
        return f"{seconds:,.1f} s; {windows:,} windows; {tasks:,} tasks; {format_count(len(idle), 'trainer')}, {waits}"

    def _repr_html_(self) -> str:
        try:
            picture = draw_html(self.lanes, self.start_time, self.stop_time, str(self))
        except PlanError as error:
            picture = format_paragraph(f"{self}. Not drawn: {error}")
        return format_value(picture)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the timeline to a file.

        Parameters
        ----------
        path
            ``.json``: a Chrome trace, for https://ui.perfetto.dev or chrome://tracing. ``.png``, ``.svg`` or ``.pdf``:
            a picture, for which matplotlib must be installed (the extra ``plot``).

        Raises
        ------
        PlanError
            If the suffix is another one, or matplotlib is missing.
        """
        target = Path(path)
        check_timeline_path(target)
        suffix = target.suffix.lower()
        if suffix == ".json":
            idle = {f"idle share of trainer {shard}": round(share, 4) for shard, share in self.idle.items()}
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(format_trace(self.lanes, self.start_time, idle), encoding="utf-8")
        else:
            draw_timeline(self.lanes, self.start_time, self.stop_time, str(self), target, suffix[1:])

    def export_spans(self, tracer_provider: Any) -> int:
        """Hand all spans to OpenTelemetry, with their own times; returns how many.

        Parameters
        ----------
        tracer_provider
            A ``TracerProvider`` of OpenTelemetry, with the exporters that shall receive the spans.

        Raises
        ------
        PlanError
            If it is not a tracer provider.
        """
        from windrow.pipeline.timeline.exports import export_lanes

        return export_lanes(self.lanes, tracer_provider, str(self))


def check_timeline_path(path: Path) -> None:
    """Raise a `PlanError` if a timeline cannot be saved to a file of this name."""
    if path.suffix.lower() not in (".json", *_PICTURES):
        raise PlanError(
            f"a timeline cannot be saved as {path.name!r}: use .json for Perfetto, or .png, .svg or .pdf for a picture"
        )
