"""Progress: a live view in a terminal or notebook, a line every half minute in a log."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from typing import Literal

from windrow.core.byte_sizes import format_bytes
from windrow.core.terminal_text import escape_controls
from windrow.pipeline.coordinator.requests import EpochFacts
from windrow.pipeline.executors.base import CoordinatorClient
from windrow.pipeline.shard.progress_views import View, in_notebook, make_view
from windrow.pipeline.shard.waits import Totals
from windrow.pipeline.statistics.bottleneck import TRAINERS, find_bottleneck
from windrow.pipeline.statistics.phases import LABELS, TrainerStats
from windrow.pipeline.statistics.stats import RunStats

_SHOW_SECONDS = 1.0
_LOG_SECONDS = 30.0


def is_shown(progress: bool | Literal["auto"]) -> bool:
    """Whether to show progress; ``"auto"``: if standard error is a terminal, or this is a notebook."""
    return sys.stderr.isatty() or in_notebook() if progress == "auto" else progress


class ProgressView:
    """Shows the progress of an epoch: step, window, the next one, speed, memory, and what trainers wait for.

    In a terminal or notebook it is two lines that are redrawn about once a second, else a line every half minute.
    """

    def __init__(
        self, shard_client: CoordinatorClient, facts: EpochFacts, totals: Totals, epochs: int | None
    ) -> None:
        self._client = shard_client
        self._facts = facts
        self._totals = totals
        self._epochs = epochs
        self._is_live = sys.stderr.isatty() or in_notebook()
        self._seconds = _SHOW_SECONDS if self._is_live else _LOG_SECONDS
        self._next = time.time() + self._seconds
        self._before: Sequence[TrainerStats] = (totals.stats(),)
        self._view: View | None = None
        # at the latest batch: its window and step
        self._place = (0, 0)
        self._rates = ""

    def show(self, now: float, *, window: int, step: int) -> None:
        """Show the progress, if it is time to."""
        self._place = (window, step)
        if now < self._next:
            return
        self._next = now + self._seconds
        run, own = self._client.run_stats(spans=False), self._totals.stats()
        trainers = [own, *(other for other in run.trainers if other.key != own.key)]
        since = _subtract(trainers, self._before)
        self._before = trainers
        self._rates = self._describe_rates(run, since)
        upcoming = _describe_next((self._facts.epoch, window), run)
        if self._is_live:
            self._draw(upcoming)
        else:
            sys.stderr.write(" · ".join(self._describe(upcoming)) + "\n")
            sys.stderr.flush()

    def end(self) -> None:
        """Leave the last state on the screen."""
        view = self._view
        if view is not None:
            # what it showed is up to a second old
            self._draw("")
            view.stop()
            self._view = None

    @property
    def _steps(self) -> int | None:
        facts = self._facts
        if facts.total is None or facts.assignment.ends_by_tokens:
            return None
        return facts.assignment.steps(facts.total, self._totals.shard)

    def _describe(self, upcoming: str) -> tuple[str, str]:
        """Where the shard is, and how it gets on; ``upcoming`` says how much of the next window is ready."""
        facts, steps = self._facts, self._steps
        window, step = self._place
        place = (
            f"epoch {facts.epoch + 1}{'' if self._epochs is None else f'/{self._epochs}'}"
            f" · step {step:,}{'' if steps is None else f'/{steps:,}'}"
        )
        rest = f"window {window + 1}/{facts.windows}{upcoming} · {self._rates}"
        return escape_controls(place), escape_controls(rest)

    @staticmethod
    def _describe_rates(run: RunStats, since: Sequence[TrainerStats]) -> str:
        """Speed, waits and memory; ``since`` is what trainers did since the last time."""
        speed = sum(one.bytes_per_second for one in since)
        waited, seconds = sum(one.wait_seconds for one in since), sum(one.seconds for one in since)
        return (
            f"{speed / 1e6:,.1f} MB/s · trainers wait {waited / max(seconds, 1e-9):.1%}{_describe_cause(since)}"
            f" · {format_bytes(run.held_bytes)} of {format_bytes(run.memory_bytes)}"
        )

    def _draw(self, upcoming: str) -> None:
        if self._view is None:
            self._view = make_view()
        self._view.update(*self._describe(upcoming), self._place[1], self._steps)


def _subtract(now: Sequence[TrainerStats], before: Sequence[TrainerStats]) -> list[TrainerStats]:
    """What each trainer has done meanwhile."""
    earlier = {one.key: one for one in before}
    return [
        TrainerStats(
            one.shard,
            bytes=one.bytes - old.bytes,
            work_seconds=one.work_seconds - old.work_seconds,
            waits={name: seconds - old.waits.get(name, 0.0) for name, seconds in one.waits.items()},
        )
        for one in now
        for old in (earlier.get(one.key, TrainerStats(one.shard)),)
    ]


def _describe_cause(since: Sequence[TrainerStats]) -> str:
    """What trainers mainly wait for, if they do."""
    cause = find_bottleneck(since).cause
    return "" if cause == TRAINERS else f", for {LABELS[cause]}"


def _describe_next(place: tuple[int, int], run: RunStats) -> str:
    """Format how much of the next window is ready, once it is being prepared."""
    ready = next((share for key, share in sorted(run.windows_ready.items()) if key > place), None)
    return "" if ready is None else f", next {math.floor(100 * ready)} % ready"
