"""What decoded blocks may take of a run's memory, and that in words."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass

import numpy as np

from windrow.core.byte_sizes import format_bytes
from windrow.pipeline.plan.job import Job
from windrow.pipeline.plan.window_budget import Budget

__all__ = ["RunBudget", "describe_cache", "share_memory"]

# The rest is for what estimates miss, and for windows of later epochs that are a little larger.
_USABLE_SHARE = 0.8
# Null flags are not told by footers, and buffers are rounded up.
_SIZE_MARGIN = 9 / 8


@dataclass(frozen=True)
class RunBudget(Budget):
    """A budget with a fixed share for the decoded blocks that are kept in memory.

    Attributes
    ----------
    cache_bytes
        What they may take.
    """

    cache_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """The promise: everything together."""
        total = super().total_bytes + self.cache_bytes
        return min(total, self.limit_bytes) if self.shared and self.overhead is not None else total

    @property
    def shared_bytes(self) -> int:
        """What windows, runs and the blocks in tasks may take together."""
        cached = self.cache_bytes if self.shared and self.overhead is not None else 0
        return max(0, super().shared_bytes - cached)


def share_memory(job: Job, budget: Budget, *, limit_covers_all: bool) -> int:
    """Bytes for decoded blocks, given the budget without them; 0 where none are kept.

    They never make windows smaller: where these do not fit whole, nothing is left.
    """
    if job.cache != "memory":
        return 0
    blocks = job.source.blocks
    reserved = budget.runs_bytes + budget.tasks_bytes + budget.processes_bytes if limit_covers_all else 0
    # of estimates windows are allowed all the rest, and will hardly need it
    windows = budget.windows_limit_bytes if budget.exact else budget.windows_bytes * 5 // 4
    left = budget.limit_bytes - reserved - windows if budget.slices == 1 else 0
    requested = (
        int(max(0, left) * _USABLE_SHARE) if job.options.cache_bytes is None else job.options.cache_bytes
    )
    return min(requested, int(blocks.memory_bytes.sum() * _SIZE_MARGIN)) if blocks.bytes_exact else requested


def describe_cache(job: Job, memory_bytes: int) -> str:
    """Where decoded blocks are kept, and how many; empty where nobody asked for it."""
    options = job.options
    if options.cache is None:
        return ""
    if job.cache is None:
        return "none: a single epoch reads no block twice"
    if job.cache == "memory":
        return (
            f"memory, {_format_amount(job, memory_bytes)}"
            if memory_bytes
            else "none: windows leave no memory for it"
        )
    cached = ", kept for later runs" if options.keep_cache else ""
    limit = options.cache_bytes
    amount = "up to half of what is free" if limit is None else _format_amount(job, limit)
    return f"disk of each machine ({options.cache_dir or tempfile.gettempdir()}), {amount}{cached}"


def _format_amount(job: Job, limit_bytes: int) -> str:
    sizes = job.source.blocks.memory_bytes
    count = int(np.searchsorted(np.cumsum(sizes), limit_bytes, side="right"))
    share = "all" if count == len(sizes) else f"about {count:,}"
    return f"up to {format_bytes(limit_bytes)}: {share} of {len(sizes):,} blocks"
