"""The progress line on standard error: epoch, window, step, speed, waiting, memory."""

from __future__ import annotations

import math
import sys
import time
from typing import Literal

from windrow.core.byte_sizes import format_bytes
from windrow.pipeline.coordinator.stats import RunStats
from windrow.pipeline.executors.base import CoordinatorClient, EpochFacts

__all__ = ["ProgressLine", "is_shown"]

_SHOW_SECONDS = 1.0


def is_shown(progress: bool | Literal["auto"]) -> bool:
    """Whether to show progress; ``"auto"``: if standard error is a terminal."""
    return sys.stderr.isatty() if progress == "auto" else progress


class ProgressLine:
    """Rewrites one line on standard error, about once a second: epoch, window, the next one, step, speed, memory."""

    def __init__(
        self, shard_client: CoordinatorClient, facts: EpochFacts, shard: int, epochs: int | None
    ) -> None:
        self._client = shard_client
        self._facts = facts
        self._shard = shard
        self._epochs = epochs
        self._began = time.time()
        self._next = self._began + _SHOW_SECONDS
        self._width = 0

    def show(self, now: float, *, window: int, step: int, size_bytes: int, wait_seconds: float) -> None:
        """Show the progress of the epoch, at most once a second."""
        if now < self._next:
            return
        self._next = now + _SHOW_SECONDS
        seconds = max(now - self._began, 1e-9)
        speed, wait_share = size_bytes / seconds, wait_seconds / seconds
        self._write(self._describe(self._client.run_stats(spans=False), window, step, speed, wait_share))

    def _describe(
        self, run: RunStats, window: int, step: int, bytes_per_second: float, wait_share: float
    ) -> str:
        facts, epochs = self._facts, self._epochs
        steps = "" if facts.total is None else f"/{facts.assignment.steps(facts.total, self._shard):,}"
        return (
            f"epoch {facts.epoch + 1}{'' if epochs is None else f'/{epochs}'}"
            f" · window {window + 1}/{facts.windows}{_describe_next((facts.epoch, window), run)} · step {step:,}{steps}"
            f" · {bytes_per_second / 1e9:.2f} GB/s · trainer waits {wait_share:.1%}"
            f" · {format_bytes(run.held_bytes)} of {format_bytes(run.memory_bytes)}"
        )

    def end(self) -> None:
        """Finish the line, leaving its last text on the screen."""
        if self._width:
            sys.stderr.write("\n")
            self._width = 0

    def _write(self, line: str) -> None:
        sys.stderr.write("\r" + line.ljust(self._width))
        sys.stderr.flush()
        self._width = len(line)


def _describe_next(place: tuple[int, int], run: RunStats) -> str:
    """Format how much of the next window is ready, once it is being prepared."""
    ready = next((share for key, share in sorted(run.windows_ready.items()) if key > place), None)
    return "" if ready is None else f", next {math.floor(100 * ready)} % ready"
