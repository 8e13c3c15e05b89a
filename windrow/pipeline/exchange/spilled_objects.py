"""Pieces on Ray: those of partitions as objects, which the process that runs the exchange owns.

An object holds one task's pieces of one partition. Where that would be too many objects, adjacent partitions share
one: reading a partition then fetches its neighbours' pieces too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.pipeline.exchange.derived_source import Parent
from windrow.pipeline.exchange.operations import Divided, MapTask
from windrow.pipeline.exchange.spilled_pieces import Pieces, read_piece, stack_rows, write_pieces
from windrow.pipeline.executors.ray.data.object_store import get_objects, is_for_ray
from windrow.pipeline.executors.ray.data.remote_calls import call_on_ray, call_with_outputs
from windrow.pipeline.executors.ray.pickling import ON_THREADS, call_with_picklable

R = TypeVar("R")
T = TypeVar("T")
# each takes the owner 4 to 5 KB
_MAX_OBJECTS = 20_000


def call_tasks(call: Callable[[MapTask], R], tasks: Sequence[MapTask], parent: Parent) -> list[R]:
    """Call a function for every task; the results, which are small, in order."""
    return _call_for(parent, lambda: call_on_ray(call, tasks, MapTask.describe))


def _call_for(parent: Parent, call: Callable[[], T]) -> T:
    return call_with_picklable(call, parent.maps, parent.source.reader, otherwise=ON_THREADS)


@dataclass(frozen=True)
class _ObjectMapper:
    """A map task whose outputs are objects, each with the pieces of adjacent partitions."""

    divide: Callable[[MapTask], Divided]
    # (objects + 1,) the partitions at which objects begin
    borders: tuple[int, ...]

    def __call__(self, task: MapTask) -> tuple[NDArray[np.int64], Iterator[pa.Buffer]]:
        divided = self.divide(task)
        return np.diff(divided.cuts), self._serialize(divided)

    def _serialize(self, divided: Divided) -> Iterator[pa.Buffer]:
        for first, stop in zip(self.borders[:-1], self.borders[1:], strict=True):
            sink = pa.BufferOutputStream()
            write_pieces(sink, divided, first, stop)
            yield sink.getvalue()


@dataclass(frozen=True, eq=False)
class _ObjectSpill:
    """The pieces of all tasks in the object store; `Spilled`."""

    # by task and object
    refs: Sequence[Sequence[Any]]
    borders: tuple[int, ...]
    rows: NDArray[np.int64]

    @property
    def is_portable(self) -> bool:
        """Whether Ray itself is pickling: a file or a pipe does not keep its objects alive."""
        return is_for_ray()

    def pieces(self, partition: int) -> Pieces:
        number = int(np.searchsorted(self.borders, partition, side="right")) - 1
        first, stop = self.borders[number], self.borders[number + 1]
        tasks = np.flatnonzero(self.rows[:, partition]).tolist()
        # in a list, so that Ray does not fetch them all before the task that reads them starts
        refs = [self.refs[task][number] for task in tasks]
        return Pieces(
            partition, partial(_read_objects, refs, self.rows[tasks, first:stop], partition - first)
        )


def _read_objects(refs: list[Any], rows: NDArray[np.int64], place: int, origin: str) -> list[pa.Table]:
    """Read pieces, given (pieces, partitions of an object) rows, and the place of the partition in each object."""
    buffers = get_objects(refs, origin)
    return [read_piece(buffer, of_object, place) for buffer, of_object in zip(buffers, rows, strict=True)]


def spill_on_ray(
    divide: Callable[[MapTask], Divided], tasks: Sequence[MapTask], partitions: int, parent: Parent
) -> _ObjectSpill:
    """Run the map tasks on Ray; Ray spills what does not fit into its object store."""
    objects = max(1, min(partitions, _MAX_OBJECTS // max(1, len(tasks))))
    borders = tuple(at * partitions // objects for at in range(objects + 1))
    call = _ObjectMapper(divide, borders)
    rows, refs = _call_for(parent, lambda: call_with_outputs(call, tasks, MapTask.describe, objects))
    return _ObjectSpill(refs, borders, stack_rows(rows, partitions))
