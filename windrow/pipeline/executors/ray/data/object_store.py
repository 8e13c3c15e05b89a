"""Puts blocks of data from memory into Ray's object store, which tasks then map.

Pickles of blocks from memory have references instead, so a task gets only the blocks that it reads, mapped without a
copy. A block is transferred to another node once, when a task there reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import ray

from windrow.core.errors import SourceError
from windrow.io.adapters.in_memory_tables import InMemoryBlocks, unpack_table
from windrow.pipeline.executors.ray.coordinator_calls import get_all


class ObjectStoreBlocks:
    """Blocks in Ray's object store; replaces an `InMemoryBlocks` in a pickle."""

    def __init__(self, refs: Sequence[ray.ObjectRef[Any]]) -> None:
        self._refs = refs

    def block(self, number: int) -> pa.Table:
        """The table of a block, backed by the object store's memory."""
        try:
            (buffer,) = get_all([self._refs[number]], f"block {number} of data from memory")
            return unpack_table(buffer)
        except ray.exceptions.ObjectLostError as error:
            raise SourceError(
                f"block {number} of data from memory is lost, since the process that made the dataset, or its "
                f"node, has ended; create the dataset again and restart the job ({type(error).__name__})"
            ) from error

    def __reduce__(self) -> tuple[Any, ...]:
        if is_for_ray():
            return ObjectStoreBlocks, (self._refs,)
        # a file or a pipe does not keep Ray objects alive
        return InMemoryBlocks, ([self.block(number) for number in range(len(self._refs))],)


def get_objects(refs: Sequence[Any], origin: str) -> list[Any]:
    """Return the objects that hold the rows of a block; raises SourceError if they are lost."""
    try:
        return list(get_all(refs, origin))
    except ray.exceptions.RayError as error:
        raise SourceError(
            f"{origin}: its rows are lost ({type(error).__name__}): they live only as long as the process that "
            "made the dataset; make the dataset and the pipeline again"
        ) from error


def reduce_to_references(held: InMemoryBlocks) -> tuple[Any, ...] | None:
    """The ``__reduce__`` value of in-memory blocks: references if Ray is pickling; None to pickle the data itself."""
    if not is_for_ray():
        return None
    session = ray.get_runtime_context().get_worker_id()
    if held.carried is None or held.carried[0] != session:
        # in another thread: Ray would record puts of this one as references inside the pickle in progress
        with ThreadPoolExecutor(1, "windrow-put") as thread:
            refs = thread.submit(lambda: [ray.put(buffer) for buffer in held.pack()]).result()
        held.carried = (session, refs)
    return ObjectStoreBlocks, (held.carried[1],)


def is_for_ray() -> bool:
    """Whether the pickle in progress goes to a process of this Ray session."""
    return bool(
        ray.is_initialized()
        and ray._private.worker.global_worker.get_serialization_context().is_in_band_serialization()
    )
