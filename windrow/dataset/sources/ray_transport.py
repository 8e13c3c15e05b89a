"""How data in memory goes to other processes: where Ray runs, through its store."""

from __future__ import annotations

from typing import Any

from windrow.io.in_memory.in_memory_blocks import InMemoryBlocks
from windrow.pipeline.executors.resolve import ray_is_initialized

__all__ = ["carry_held"]


def carry_held(held: InMemoryBlocks) -> tuple[Any, ...] | None:
    """What blocks in memory are pickled as; None: themselves."""
    if not ray_is_initialized():
        return None
    from windrow.pipeline.executors.ray.data.object_store_blocks import reduce_to_references

    return reduce_to_references(held)
