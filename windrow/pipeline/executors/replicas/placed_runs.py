"""The windows that a host holds, with the runs that it has placed, and which readers map them."""

from __future__ import annotations

from collections import Counter, deque
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from windrow.core.errors import PlanError
from windrow.core.shared_batches import SharedBatch
from windrow.pipeline.executors.base import WindowData
from windrow.pipeline.executors.replicas.replica_states import Reader


@dataclass
class PlacedRun:
    """A run in shared memory, or on the way there; ``number`` tells it from others, also of the same rows."""

    number: int
    future: Future[SharedBatch] = field(default_factory=Future)
    # references that keep its memory
    kept: list[Any] = field(default_factory=list)
    # how often each reader maps it
    lent: Counter[Reader] = field(default_factory=Counter)

    @property
    def has_failed(self) -> bool:
        """Whether its rows could not be placed."""
        return self.future.done() and self.future.exception() is not None

    def finish(self, submitted: Future[SharedBatch]) -> None:
        """Tell those that wait how the work ended that places it."""
        error = None if submitted.cancelled() else submitted.exception()
        if submitted.cancelled() or isinstance(error, CancelledError):
            error = PlanError("the shard was closed while its rows were being placed")
        if error is None:
            self.future.set_result(submitted.result())
        else:
            self.future.set_exception(error)


@dataclass
class HeldWindow:
    """A window that the coordinator has delivered; its runs by slice and index."""

    data: WindowData
    runs: dict[tuple[int, int], PlacedRun] = field(default_factory=dict)


class LentRuns:
    """The runs that readers map. Their memory is not used again before that ends, even if no replica needs the rows."""

    def __init__(self) -> None:
        self._numbers = count()
        self._runs: dict[int, PlacedRun] = {}
        # Finalizers append in any thread, also in one that holds the host's lock or one that it waits for.
        self._released: deque[tuple[Reader, int]] = deque()

    def make(self) -> PlacedRun:
        """A run that will be placed."""
        return PlacedRun(next(self._numbers))

    def lend(self, placed: PlacedRun, reader: Reader) -> SharedBatch:
        """Note that a reader is about to map a run; returns what it needs."""
        self.collect_released()
        placed.lent[reader] += 1
        self._runs[placed.number] = placed
        return replace(placed.future.result(), number=placed.number)

    def released(self, reader: Reader, number: int) -> None:
        """A reader maps a run once less. This needs no lock, and takes effect with the next call of another method."""
        self._released.append((reader, number))

    def collect_released(self) -> None:
        """Let the memory of runs that no reader maps any more be used again."""
        while self._released:
            reader, number = self._released.popleft()
            placed = self._runs.get(number)
            # a reader that has ended has returned everything
            if placed is not None and reader in placed.lent:
                placed.lent[reader] -= 1
                if not placed.lent[reader]:
                    self._return(placed, reader)

    def take_back(self, reader: Reader) -> None:
        """Note that a reader maps nothing any more."""
        self.collect_released()
        for placed in list(self._runs.values()):
            self._return(placed, reader)

    def _return(self, placed: PlacedRun, reader: Reader) -> None:
        placed.lent.pop(reader, None)
        if not placed.lent:
            self._runs.pop(placed.number, None)
