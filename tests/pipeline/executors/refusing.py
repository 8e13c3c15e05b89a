"""An executor that runs nothing: what works with it does no work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from windrow.pipeline.executors.base import Session
from windrow.pipeline.plan.job import Launch, Resources
from windrow.pipeline.plan.program import Program


class RefusedError(Exception):
    """Something was about to run."""


@dataclass(frozen=True)
class RefusingExecutor:
    """Refuses to make a run."""

    @property
    def name(self) -> str:
        return "refusing"

    def resources(self, launch: Launch = Launch()) -> Resources:
        return Resources("refusing", workers=2, memory_bytes=2**30, limit_covers_all=True)

    def session(self, program: Program, hints: Sequence[Any] | None) -> Session:
        raise RefusedError(f"asked to run {program.shards} shards")
