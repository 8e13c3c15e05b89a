"""The memory estimate of a run: as computed by `explain()`, and as corrected while blocks are read."""

from __future__ import annotations

from windrow.core.byte_sizes import format_bytes
from windrow.pipeline.plan.window_budget import Budget, RowSizes

__all__ = ["MemoryEstimate"]

# Smaller deviations are within the accuracy of an estimate, and not reported.
_REPORT_RATIO, _REPORT_BYTES = 1.2, 64 * 2**20


class MemoryEstimate:
    """The peak memory of a run: a bound where sizes are exact, else an estimate.

    Parameters
    ----------
    budget
        The budget that the first estimate was computed from.

    Attributes
    ----------
    total_bytes
        The current estimate of the run's peak memory.
    """

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._estimated_bytes = budget.total_bytes
        self.total_bytes = budget.total_bytes

    def grow(self, sizes: RowSizes, *, memory_bytes: int) -> list[str]:
        """Raise the estimate to measured row sizes; returns warnings for the user.

        Parameters
        ----------
        sizes
            The measured row sizes.
        memory_bytes
            The limit for all windows together.
        """
        if self._budget.exact:
            return []
        grown = self._budget.grown(sizes)
        self.total_bytes = max(self.total_bytes, grown.total_bytes)
        announced_bytes = self._estimated_bytes
        if self.total_bytes <= max(_REPORT_RATIO * announced_bytes, announced_bytes + _REPORT_BYTES):
            return []
        self._estimated_bytes = self.total_bytes
        reason = (
            f"blocks take {sizes.growth:,.1f} times the memory that was estimated"
            if sizes.growth > 1
            else f"batches take {format_bytes(sizes.row_bytes)} per row, more than estimated"
        )
        return [
            f"{reason}: the run needs about "
            f"{format_bytes(self.total_bytes)} in total instead of {format_bytes(announced_bytes)}; "
            f"a window takes about {format_bytes(grown.window_bytes / grown.copies)} of the "
            f"{format_bytes(memory_bytes)} available to all windows. To use less, make windows smaller "
            "with window(bytes_per_window=...)"
        ]
