"""Measures the phases of a map task: storage, decode, transforms and shuffle."""

from __future__ import annotations

import resource
from collections.abc import Iterable, Iterator
from functools import lru_cache, partial
from typing import Any

import pyarrow as pa

from windrow.core.machine import available_cores
from windrow.core.phase_clock import PhaseClock, timed_call
from windrow.core.source import BlockPart
from windrow.pipeline.coordinator.phases import (
    DECODE,
    SHUFFLE,
    STORAGE,
    TRANSFORM,
    TRANSFORM_PREFIX,
    TaskProfile,
)

__all__ = ["TaskMeter", "timed_parts"]

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
        seconds = dict(clock.seconds)
        functions = {
            name.removeprefix(TRANSFORM_PREFIX): seconds.pop(name)
            for name in list(seconds)
            if name.startswith(TRANSFORM_PREFIX)
        }
        phases = {name: seconds.get(name, 0.0) for name in (STORAGE, DECODE, SHUFFLE)}
        phases[TRANSFORM] = seconds.get(TRANSFORM, 0.0) + sum(functions.values())
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
    """Yield the parts of a block such that what they decode counts as decoding."""
    iterator = iter(parts)
    while True:
        # in a list, so that this frame does not hold a part while the next one is decoded
        found = [timed_call(DECODE, next, iterator, None)]
        if found[0] is None:
            return
        yield found.pop() if isinstance(found[0], pa.Table) else _TimedPart(found.pop())


class _TimedPart:
    """A part whose columns are decoded when they are used."""

    def __init__(self, part: BlockPart) -> None:
        self._part = part
        self.num_rows, self.schema = part.num_rows, part.schema

    def select(self, columns: list[int]) -> pa.Table:
        return timed_call(DECODE, self._part.select, columns)

    def __getattr__(self, name: str) -> Any:
        # what only some parts have: statistics, and decoding straight into a destination
        found = getattr(self._part, name)
        if name.startswith(("scatter_", "decode_")):
            found = partial(timed_call, DECODE, found)
        # the next time it is found at once
        setattr(self, name, found)
        return found


def _major_faults() -> int:
    who = getattr(resource, "RUSAGE_THREAD", None)
    return 0 if who is None else resource.getrusage(who).ru_majflt


@lru_cache(maxsize=1)
def _cores() -> int:
    return available_cores()
