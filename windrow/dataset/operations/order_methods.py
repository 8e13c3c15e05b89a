"""sort and random_shuffle: all rows in another order, in bounded memory."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import partial
from typing import TypeVar

from windrow.core.byte_sizes import parse_bytes
from windrow.dataset.argument_checks import check_keys, check_seed, check_sort
from windrow.dataset.logical_plan import DRAWN_SEED_BITS, LogicalPlan, exchange_plan, make_parent
from windrow.dataset.readable import Readable
from windrow.pipeline.exchange.derived_source import Parent
from windrow.pipeline.exchange.exchange_source import ExchangePlan, OutputRows, plan_partitions
from windrow.pipeline.exchange.operations import ShuffleOperation, SortOperation

Self = TypeVar("Self", bound="OrderMethods")


class OrderMethods(Readable):
    """Methods of a dataset that put all rows into another order."""

    def sort(
        self: Self,
        key: str | Sequence[str],
        descending: bool | Sequence[bool] = False,
        *,
        target_block_bytes: int | str = "64MiB",
    ) -> Self:
        """Sort the rows; the sort is stable.

        Numbers, text, bytes, decimals, booleans and times have an order. NaN comes after all numbers and
        nulls come last, ascending or descending. The rows are spilled once, when the first of them is needed.

        Parameters
        ----------
        key
            A column, or a list of columns in order of importance.
        descending
            Whether the largest values come first; a list: for each column.
        target_block_bytes
            Approximate size of a block of the result. Sorting holds a few of them in memory.

        Raises
        ------
        PlanError
            If a column does not exist or has no order, or an argument is invalid.

        Examples
        --------
        >>> import windrow
        >>> ds = windrow.from_items([{"x": 2}, {"x": None}, {"x": 3}])
        >>> [row["x"] for row in ds.sort("x", descending=True).take()]
        [3, 2, None]
        """
        keys, given = check_sort(key, descending, "sort()")
        down = list(given)
        size = parse_bytes(target_block_bytes, "target_block_bytes")
        names = repr(keys[0]) if len(keys) == 1 else repr(list(keys))
        call = (
            f"sort({names}{', descending=' + repr(down if len(down) > 1 else down[0]) if any(down) else ''})"
        )
        return type(self)(sort_plan(self._plan, keys, given, size, call))

    def random_shuffle(
        self: Self, *, seed: int | None = None, target_block_bytes: int | str = "64MiB"
    ) -> Self:
        """Shuffle all rows, once; every order is equally likely, to any practical test.

        The order is a pure function of the data's row order and the seed, whatever the executor and the block
        size. The rows are spilled once, when the first of them is needed, so the data can be larger than memory.
        For a new order in every epoch, use ``window().repeat().random_shuffle_each_window()``, which spills
        nothing.

        Parameters
        ----------
        seed
            Any integer. None: a seed is drawn now; ``repr`` shows it.
        target_block_bytes
            Approximate size of a block of the result.

        Raises
        ------
        PlanError
            If an argument is invalid.

        Examples
        --------
        >>> import windrow
        >>> [row["id"] for row in windrow.range(5).random_shuffle(seed=7).take()]
        [3, 1, 0, 4, 2]
        """
        number = secrets.randbits(DRAWN_SEED_BITS) if seed is None else check_seed(seed)
        size = parse_bytes(target_block_bytes, "target_block_bytes")
        return type(self)(shuffle_plan(self._plan, number, size))


def sort_plan(
    plan: LogicalPlan,
    keys: tuple[str, ...],
    descending: tuple[bool, ...],
    target_bytes: int,
    call: str,
    *,
    keeps_groups: bool = False,
) -> LogicalPlan:
    """Return the plan of sorted rows; with ``keeps_groups``, equal keys share a block."""
    parent = make_parent(plan)
    check_keys(parent.known_schema, keys, call)
    partitions = plan_partitions(parent, target_bytes)
    make = partial(_make_sort, keys, descending, partitions, keeps_groups)
    return exchange_plan(plan, parent, ExchangePlan(make, partitions, OutputRows.ALL), call)


def _make_sort(
    keys: tuple[str, ...], descending: tuple[bool, ...], partitions: int, keeps_groups: bool, parent: Parent
) -> SortOperation:
    check_keys(parent.schema, keys, "sort()")
    return SortOperation(partitions, keys, descending, keeps_groups)


def shuffle_plan(plan: LogicalPlan, seed: int, target_bytes: int) -> LogicalPlan:
    """Return the plan of shuffled rows."""
    parent = make_parent(plan)
    partitions = plan_partitions(parent, target_bytes)
    exchange = ExchangePlan(partial(_make_shuffle, seed, partitions), partitions, OutputRows.EQUAL)
    return exchange_plan(plan, parent, exchange, f"random_shuffle(seed={seed})")


def _make_shuffle(seed: int, partitions: int, parent: Parent) -> ShuffleOperation:
    return ShuffleOperation(partitions, seed, int(parent.row_counts.sum()))
