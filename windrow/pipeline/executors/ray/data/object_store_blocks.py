"""Blocks in memory on their way over Ray: put into its store once, one object each, and named from then on.

A task then gets the blocks that it reads, mapped without a copy, and nothing else of the data;
a block comes to another node once, when something there reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import ray

from windrow.core.errors import SourceError
from windrow.io.in_memory.in_memory_blocks import InMemoryBlocks, unpack_table
from windrow.pipeline.executors.ray.coordinator_calls import get_all

__all__ = ["ObjectStoreBlocks", "reduce_to_references"]


class ObjectStoreBlocks:
    """Blocks in Ray's store, in the place of a `InMemoryBlocks`."""

    def __init__(self, refs: Sequence[ray.ObjectRef[Any]]) -> None:
        self._refs = refs

    def block(self, number: int) -> pa.Table:
        """The table of a block, in the store's memory."""
        try:
            (buffer,) = get_all([self._refs[number]], f"block {number} of data from memory")
            return unpack_table(buffer)
        except ray.exceptions.ObjectLostError as error:
            raise SourceError(
                f"block {number} of data from memory is lost: it goes with the process that made the "
                f"dataset, or with its node; start the run again there ({type(error).__name__})"
            ) from error

    def __reduce__(self) -> tuple[Any, ...]:
        if _is_for_ray():
            return ObjectStoreBlocks, (self._refs,)
        # a file or a pipe keeps no object of Ray's alive
        return InMemoryBlocks, ([self.block(number) for number in range(len(self._refs))],)


def reduce_to_references(held: InMemoryBlocks) -> tuple[Any, ...] | None:
    """What blocks are pickled as: where Ray takes the pickle, names in its store; elsewhere themselves."""
    if not _is_for_ray():
        return None
    session = ray.get_runtime_context().get_worker_id()
    if held.carried is None or held.carried[0] != session:
        # in a thread of its own: this one is in the midst of a pickle, which has references of its own
        with ThreadPoolExecutor(1, "windrow-put") as thread:
            refs = thread.submit(lambda: [ray.put(buffer) for buffer in held.pack()]).result()
        held.carried = (session, refs)
    return ObjectStoreBlocks, (held.carried[1],)


def _is_for_ray() -> bool:
    """Whether what is being pickled goes to a process of this Ray session."""
    return bool(
        ray.is_initialized()
        and ray._private.worker.global_worker.get_serialization_context().is_in_band_serialization()
    )
