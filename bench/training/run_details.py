"""What a system reports about its run: the memory estimate, map tasks, the object store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bench.system.ray_cluster import ObjectStoreUse

# Accepted excess of the peak over the estimate, idle memory excluded. The estimate covers rows. In addition, the
# allocators of Arrow, NumPy and Ray retain freed pages for a while, modules are imported after the idle memory was
# measured, and stacks and small objects of the interpreters grow. None of this depends on the size of the data.
TOLERANCE_BYTES = 64 * 2**20


@dataclass(frozen=True)
class MemoryEstimate:
    total_bytes: int
    windows_bytes: int
    runs_bytes: int
    tasks_bytes: int
    limit_bytes: int
    windows: int

    def is_exceeded_by(self, peak_bytes: int) -> bool:
        return peak_bytes > self.total_bytes + TOLERANCE_BYTES

    def __str__(self) -> str:
        sizes = (self.total_bytes, self.windows_bytes, self.runs_bytes, self.tasks_bytes)
        total, windows, runs, tasks = (f"{size / 2**20:,.0f}" for size in sizes)
        return f"{total} MiB = windows {windows} + runs {runs} + tasks {tasks}"


def read_estimate(explanation: Any) -> MemoryEstimate:
    budget = explanation.budget
    names = MemoryEstimate.__dataclass_fields__
    return MemoryEstimate(**{name: getattr(budget, name) for name in names})


@dataclass(frozen=True)
class RunDetails:
    estimate: MemoryEstimate | None = None
    store: ObjectStoreUse | None = None
