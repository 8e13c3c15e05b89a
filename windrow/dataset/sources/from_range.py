"""range: consecutive integers as a Dataset."""

from __future__ import annotations

from windrow.core.errors import PlanError
from windrow.core.integers import as_integer, check_count
from windrow.dataset.dataset import Dataset
from windrow.dataset.logical_plan import LogicalPlan
from windrow.io.adapters.in_memory_tables import count_up

_MAX_N, _MAX_BLOCKS = 2**62, 10**7


def range(n: int, *, block_rows: int = 2**20) -> Dataset:
    """Return the integers from 0 to ``n`` - 1 as column ``"id"``, int64; they are generated when read.

    Parameters
    ----------
    n
        Number of rows.
    block_rows
        Rows per block; the last block can have fewer.

    Raises
    ------
    PlanError
        If an argument is not an integer, or out of range.

    Examples
    --------
    >>> import windrow
    >>> ds = windrow.range(10, block_rows=4)
    >>> ds.count(), ds.num_blocks(), ds.take(2)
    (10, 3, [{'id': 0}, {'id': 1}])
    """
    number = as_integer(n)
    if number is None or not 0 <= number <= _MAX_N:
        raise PlanError(f"range({n!r}): n must be an integer of 0 or more, and at most 2^62")
    size = check_count(block_rows, "block_rows")
    if number // size > _MAX_BLOCKS:
        raise PlanError(
            f"range({n!r}) has {number // size:,} blocks of block_rows={size:,}, more than {_MAX_BLOCKS:,}: "
            "make blocks larger"
        )
    return Dataset(LogicalPlan(count_up(number, size)))
