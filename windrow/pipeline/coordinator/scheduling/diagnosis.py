"""Describes what a shard waits for, for stall messages."""

from __future__ import annotations

from windrow.core.byte_sizes import format_bytes
from windrow.pipeline.coordinator.scheduling.scheduler import Scheduler

__all__ = ["diagnose"]


def diagnose(scheduler: Scheduler, shard: int, now: float) -> str:
    """Describe what a shard waits for; ``now`` is the time, as given to `Scheduler.handle`."""
    place = scheduler.shards.progress.get(shard)
    if place is None:
        return f"shard {shard} has been closed"
    where = f"epoch {place.epoch}, window {place.window}"
    window = scheduler.window(place.epoch, place.window)
    held = f"{format_bytes(scheduler.held_bytes)} of {format_bytes(scheduler.memory_bytes)} are held"
    if window is None or (not window.running and not window.complete):
        return f"shard {shard} waits at {where} for memory: {held}{_holders(scheduler, shard, now)}"
    if window.complete:
        return f"shard {shard} at {where}: all map tasks are done and its rows are being fetched"
    return (
        f"shard {shard} waits at {where} for {len(window.running)} running tasks; "
        f"{window.finished_parts} of {len(window.parts)} parts are ready; {held}"
    )


def _holders(scheduler: Scheduler, shard: int, now: float) -> str:
    others = [
        f"shard {other} (at epoch {place.epoch}, window {place.window}; "
        f"last heartbeat {scheduler.shards.format_heartbeat(other, now)})"
        for other, place in sorted(scheduler.shards.progress.items())
        if other != shard
    ]
    if not others:
        return ""
    return (
        f", some of it for {', '.join(others)}. Read all shards concurrently, or call "
        "pipe.shard(rank=, world_size=) where each process reads only its own"
    )
