"""A dataset of consecutive numbers."""

from __future__ import annotations

from windrow.core.errors import PlanError
from windrow.core.integers import as_integer
from windrow.dataset.argument_checks import check_count
from windrow.dataset.dataset import Dataset
from windrow.dataset.logical_plan import LogicalPlan
from windrow.io.in_memory.number_range import count_up

__all__ = ["range"]

_MOST, _MAX_BLOCKS = 2**62, 10**7


def range(n: int, *, block_rows: int = 2**20) -> Dataset:
    """Return the numbers from 0 to ``n`` - 1 as column ``"id"``, int64; made when they are read.

    Parameters
    ----------
    n
        How many.
    block_rows
        Rows of a block; the last is short.

    Raises
    ------
    PlanError
        If an argument is no integer, or too small.

    Examples
    --------
    >>> import windrow
    >>> ds = windrow.range(10, block_rows=4)
    >>> ds.count(), ds.num_blocks(), ds.take(2)
    (10, 3, [{'id': 0}, {'id': 1}])
    """
    number = as_integer(n)
    if number is None or not 0 <= number <= _MOST:
        raise PlanError(f"range({n!r}): n must be an integer of 0 or more, and at most 2^62")
    size = check_count(block_rows, "block_rows")
    if number // size > _MAX_BLOCKS:
        raise PlanError(
            f"range({n!r}) has {number // size:,} blocks of block_rows={size:,}, each of which is listed: "
            "make blocks larger"
        )
    return Dataset(LogicalPlan(count_up(number, size)))
