"""Warns where shards that train together will have different numbers of steps."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from windrow.pipeline.coordinator.requests import EpochFacts

__all__ = ["find_unequal_steps"]


def find_unequal_steps(facts: EpochFacts, shards: int) -> Iterator[str]:
    """Yield a warning if torch.distributed is in use and unequal steps would make it hang."""
    if shards == 1 or facts.total is None or "torch.distributed" not in sys.modules:
        return
    assignment, total = facts.assignment, facts.total
    trainers = shards // assignment.workers
    steps = {
        sum(assignment.steps(total, shard) for shard in range(trainer, shards, trainers))
        for trainer in range(trainers)
    }
    distributed = sys.modules["torch.distributed"]
    if len(steps) > 1 and distributed.is_available() and distributed.is_initialized():
        yield (
            f"shards will have {min(steps)} or {max(steps)} steps in epoch {facts.epoch}, and collective "
            "operations of torch.distributed would hang: use equal=True or equal='pad' in split() or shard(), "
            "or drop_last=True"
        )
