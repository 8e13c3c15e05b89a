"""The block cache of a job: its part of the memory budget, its place on disk, and its line in ``explain()``."""

from __future__ import annotations

import tempfile

import numpy as np

from windrow.core.byte_sizes import format_bytes
from windrow.pipeline.plan.job import Job
from windrow.pipeline.plan.window_budget import Budget
from windrow.pipeline.tasks.cache.disk_cache import DiskCache, open_disk

# Of the memory that windows leave. The rest covers estimation errors, and slightly larger windows of later epochs.
_USABLE_SHARE = 0.8
# Block sizes from footers lack validity bitmaps and the padding of buffers.
_SIZE_MARGIN = 9 / 8


def share_memory(job: Job, budget: Budget, *, limit_covers_all: bool) -> int:
    """The bytes that the block cache gets, given the budget without it; 0 if nothing is cached in memory.

    The cache never makes windows smaller: if windows are cut into slices to fit, it gets nothing.
    """
    if job.cache != "memory":
        return 0
    blocks = job.source.blocks
    reserved = budget.runs_bytes + budget.tasks_bytes + budget.processes_bytes if limit_covers_all else 0
    # with estimated sizes the limit of the windows is all remaining memory, far more than they will need
    windows = budget.windows_limit_bytes if budget.exact else budget.windows_bytes * 5 // 4
    left = budget.limit_bytes - reserved - windows if budget.slices == 1 else 0
    requested = job.options.cache_bytes
    if requested is None:
        requested = int(max(0, left) * _USABLE_SHARE)
    return min(requested, int(blocks.memory_bytes.sum() * _SIZE_MARGIN)) if blocks.bytes_exact else requested


def disk_cache(job: Job) -> DiskCache | None:
    """The disk cache of a job, or None; no folder is created yet."""
    if job.cache != "disk":
        return None
    options = job.options
    contents = job.source.contents if options.keep_cache else None
    return open_disk(options.cache_dir, options.cache_bytes, contents)


def describe_cache(job: Job, memory_bytes: int) -> str:
    """Where decoded blocks are cached, and how many; empty if no cache is set."""
    options = job.options
    if options.cache is None:
        return ""
    if job.cache is None:
        return "none: a single epoch reads no block twice"
    if job.cache == "memory" and not memory_bytes:
        return "none: windows leave no memory for it"
    if job.cache == "memory":
        return f"memory, {_format_amount(job, memory_bytes)}"
    lifetime = ", kept for later jobs" if options.keep_cache else ""
    limit = options.cache_bytes
    amount = "up to half of what is free" if limit is None else _format_amount(job, limit)
    return f"disk of each machine ({options.cache_dir or tempfile.gettempdir()}), {amount}{lifetime}"


def _format_amount(job: Job, limit_bytes: int) -> str:
    sizes = job.source.blocks.memory_bytes
    count = int(np.searchsorted(np.cumsum(sizes), limit_bytes, side="right"))
    share = "all" if count == len(sizes) else f"about {count:,}"
    return f"up to {format_bytes(limit_bytes)}: {share} of {len(sizes):,} blocks"
