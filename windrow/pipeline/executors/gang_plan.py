"""`GangPlan`: which trainers to start together, and with what."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from windrow.shuffle.order.shard_assignment import Equal

__all__ = ["GangPlan"]


@dataclass(frozen=True)
class GangPlan:
    """The checked arguments of `run_gang`.

    Each trainer calls ``train`` with what it knows of itself and of the gang, by name.
    """

    train: Callable[..., Any]
    size: int
    datasets: Mapping[str, Any]
    equal: Equal
    resources: Mapping[str, float]
    strategy: str
    max_restarts: int
    states: Mapping[str, Any]
    start_timeout: float
