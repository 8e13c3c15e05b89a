"""What ``explain`` promised to hold, and whether a run kept to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["TOLERANCE_BYTES", "MemoryEstimate", "read_promise"]

TOLERANCE_BYTES = 64 * 2**20
"""What a run may hold above its promise, beyond the idle tree.

The promise counts rows. Beside them the allocators of Arrow, NumPy and Ray keep freed
pages for a while, modules are imported after the idle memory was measured, and stacks
and small objects of the interpreters grow: noise that depends on no data size.
"""


@dataclass(frozen=True)
class MemoryEstimate:
    """The parts of the budget that ``explain`` told before the run.

    ``windows`` is how many were to be held at once, ``blocks_per_window`` the mean.
    """

    total_bytes: int
    windows_bytes: int
    runs_bytes: int
    tasks_bytes: int
    limit_bytes: int
    windows: int
    blocks_per_window: float

    def is_broken_by(self, peak_bytes: int) -> bool:
        """Whether a peak passes the promise by more than the tolerance."""
        return peak_bytes > self.total_bytes + TOLERANCE_BYTES

    def __str__(self) -> str:
        mib = [
            f"{size / 2**20:,.0f}"
            for size in (self.total_bytes, self.windows_bytes, self.runs_bytes, self.tasks_bytes)
        ]
        return f"{mib[0]} MiB = windows {mib[1]} + runs {mib[2]} + tasks {mib[3]}"


def read_promise(explanation: Any) -> MemoryEstimate:
    """Take the promise out of a windrow ``Explanation``."""
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
