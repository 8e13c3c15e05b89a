"""The memory estimate of ``explain``, and the comparison with measured peaks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["TOLERANCE_BYTES", "MemoryEstimate", "read_estimate"]

TOLERANCE_BYTES = 64 * 2**20
"""Accepted excess of the peak over the estimate, idle memory excluded.

The estimate covers rows. In addition, the allocators of Arrow, NumPy and Ray retain freed
pages for a while, modules are imported after the idle memory was measured, and stacks
and small objects of the interpreters grow. None of this depends on the size of the data.
"""


@dataclass(frozen=True)
class MemoryEstimate:
    """The parts of the memory budget that ``explain`` reports before the run.

    ``windows`` is the number of windows held at the same time, ``blocks_per_window`` the mean.
    """

    total_bytes: int
    windows_bytes: int
    runs_bytes: int
    tasks_bytes: int
    limit_bytes: int
    windows: int
    blocks_per_window: float

    def is_exceeded_by(self, peak_bytes: int) -> bool:
        """Whether a peak exceeds the estimate by more than the tolerance."""
        return peak_bytes > self.total_bytes + TOLERANCE_BYTES

    def __str__(self) -> str:
        mib = [
            f"{size / 2**20:,.0f}"
            for size in (self.total_bytes, self.windows_bytes, self.runs_bytes, self.tasks_bytes)
        ]
        return f"{mib[0]} MiB = windows {mib[1]} + runs {mib[2]} + tasks {mib[3]}"


def read_estimate(explanation: Any) -> MemoryEstimate:
    """Read the estimate from a windrow ``Explanation``."""
    budget = explanation.budget
    return MemoryEstimate(
        total_bytes=budget.total_bytes,
        windows_bytes=budget.windows_bytes,
        runs_bytes=budget.runs_bytes,
        tasks_bytes=budget.tasks_bytes,
        limit_bytes=budget.limit_bytes,
        windows=budget.windows,
        blocks_per_window=explanation.blocks / max(1, explanation.windows),
    )
