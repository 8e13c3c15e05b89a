"""Pickles in-memory blocks for other processes: by reference to Ray's object store if Ray is initialised."""

from __future__ import annotations

from typing import Any

from windrow.io.in_memory.in_memory_tables import InMemoryBlocks
from windrow.pipeline.executors.resolve import ray_is_initialized

__all__ = ["reduce_blocks"]


def reduce_blocks(blocks: InMemoryBlocks) -> tuple[Any, ...] | None:
    """Return what ``__reduce__`` of in-memory blocks returns; None: pickle the blocks themselves."""
    if not ray_is_initialized():
        return None
    from windrow.pipeline.executors.ray.data.object_store_blocks import reduce_to_references

    return reduce_to_references(blocks)
