"""Timeouts after which a waiting consumer warns, and fails."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from windrow.pipeline.plan.job import Options

__all__ = ["Waiting", "waiting_of"]

# NCCL ends a process after 600 s by default. Failing earlier names the cause on the rank that has it.
_DISTRIBUTED_FAIL_SECONDS = 540.0


@dataclass(frozen=True)
class Waiting:
    """Seconds that a consumer waits before it warns, and before it raises `StallError`."""

    warn_seconds: float = 60.0
    fail_seconds: float = 1800.0


def waiting_of(options: Options) -> Waiting:
    """The timeouts of a job in this process: ``stall_timeout``, or defaults that know torch.distributed."""
    waiting = Waiting()
    fail_seconds = options.stall_timeout
    if fail_seconds is None:
        fail_seconds = _DISTRIBUTED_FAIL_SECONDS if _is_distributed() else waiting.fail_seconds
    return Waiting(min(waiting.warn_seconds, fail_seconds / 2), fail_seconds)


def _is_distributed() -> bool:
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized()
