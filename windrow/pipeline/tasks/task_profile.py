"""Measures the phases of a map task: storage, decode, transforms and shuffle."""

from __future__ import annotations

import resource
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

from windrow.core.machine import available_cores
from windrow.core.phase_clock import PhaseClock, timed
from windrow.core.source import BlockPart
from windrow.pipeline.statistics.phases import (
    DECODE,
    SHUFFLE,
    STORAGE,
    TASK_PHASES,
    TRANSFORM,
    TRANSFORM_PREFIX,
    TaskProfile,
)

__all__ = ["TaskMeter", "timed_parts"]

_next_part = timed(DECODE)(next)

# a major page fault waits at most about this long for a local disk
_FAULT_SECONDS = 0.02


class TaskMeter:
    """The clock of one task, and its profile."""

    def __init__(self) -> None:
        self.clock = PhaseClock(counts_cpu=True)
        self._faults = _major_faults()

    def profile(self) -> TaskProfile:
        """What the task has spent its time on; call it when the clock has stopped."""
        clock = self.clock
        # a default dictionary: phases that did not occur are 0
        seconds, functions = clock.seconds, dict[str, float]()
        phases = {name: seconds[name] for name in TASK_PHASES}
        if len(seconds) > len(phases):
            functions = {
                name.removeprefix(TRANSFORM_PREFIX): spent
                for name, spent in seconds.items()
                if name.startswith(TRANSFORM_PREFIX)
            }
            phases[TRANSFORM] += sum(functions.values())
        # reads in other threads, for which decoding waited; and pages of local files that came from a disk
        off_core = max(0.0, phases[DECODE] + phases[SHUFFLE] - clock.cpu_seconds)
        waited = clock.elsewhere.get(STORAGE, 0.0) + _FAULT_SECONDS * (_major_faults() - self._faults)
        from_storage = min(off_core, waited, phases[DECODE])
        phases[DECODE] -= from_storage
        phases[STORAGE] += from_storage
        return TaskProfile(
            phases,
            clock.cpu_seconds,
            functions,
            clock.requests,
            clock.requested_bytes,
            clock.retries,
            _cores(),
        )


def timed_parts(parts: Iterable[BlockPart]) -> Iterator[BlockPart]:
    """Yield the parts of a block; what is done to get each one counts as decoding."""
    iterator = iter(parts)
    while True:
        # in a list, so that this frame does not hold a part while the next one is decoded
        found: list[Any] = [_next_part(iterator, None)]
        if found[0] is None:
            return
        yield found.pop()


def _major_faults() -> int:
    who = getattr(resource, "RUSAGE_THREAD", None)
    return 0 if who is None else resource.getrusage(who).ru_majflt


@lru_cache(maxsize=1)
def _cores() -> int:
    return available_cores()
