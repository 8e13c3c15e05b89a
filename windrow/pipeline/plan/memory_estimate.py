"""What a run holds at most: as it was announced, and what that becomes as blocks are read."""

from __future__ import annotations

from windrow.core.byte_sizes import format_bytes
from windrow.pipeline.plan.window_budget import Budget, RowSizes

__all__ = ["MemoryEstimate"]

# An estimate that is passed by less is what estimates do.
_REPORT_RATIO, _REPORT_BYTES = 1.2, 64 * 2**20


class MemoryEstimate:
    """What a run announces that it holds at most.

    Parameters
    ----------
    budget
        By which it was announced.

    Attributes
    ----------
    total_bytes
        What the run holds at most, as far as it is known by now.
    """

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._estimated_bytes = budget.total_bytes
        self.total_bytes = budget.total_bytes

    def grow(self, sizes: RowSizes, *, memory_bytes: int) -> list[str]:
        """Rows take more than was estimated; returns what users should know of it.

        Parameters
        ----------
        sizes
            What they have been measured to take.
        memory_bytes
            What all windows may take.
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
            else f"batches take {format_bytes(sizes.row_bytes)} a row, more than was estimated"
        )
        return [
            f"{reason}: the run holds about "
            f"{format_bytes(self.total_bytes)} in all where {format_bytes(announced_bytes)} were announced; "
            f"a window takes about {format_bytes(grown.window_bytes / grown.copies)} of the "
            f"{format_bytes(memory_bytes)} that all windows may. For less, ask for smaller "
            "windows with window(bytes_per_window=...)"
        ]
