"""groupby, aggregate, unique, and the aggregates of whole datasets."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, TypeVar

from windrow.core.byte_sizes import parse_bytes
from windrow.core.errors import PlanError
from windrow.dataset.logical_plan import LogicalPlan
from windrow.dataset.operations.derive import check_keys, exchange_plan, list_keys, make_parent
from windrow.dataset.operations.grouped_dataset import GroupedDataset
from windrow.dataset.readable import Readable
from windrow.pipeline.exchange.derived_source import Parent
from windrow.pipeline.exchange.exchange_source import ExchangePlan, OutputRows, plan_partitions
from windrow.pipeline.exchange.group_operation import Aggregate, GroupOperation, check_ddof, parse_aggregates
from windrow.pipeline.plan.head import read_head
from windrow.pipeline.tasks.key_columns import check_column

__all__ = ["GroupMethods"]

Self = TypeVar("Self", bound="GroupMethods")
# Partial results are smaller than the rows that they are made of, so partitions can be of more rows than blocks. Up
# to a few smaller ones let cores share the work.
_PARTITION_BYTES = 256 * 2**20
_SMALL_PARTITION_BYTES = 16 * 2**20
_SMALL_PARTITIONS = 8
_ALL = 2**62


class GroupMethods(Readable):
    """Methods of a dataset that aggregate."""

    def groupby(
        self: Self, key: str | Sequence[str], *, target_block_bytes: int | str | None = None
    ) -> GroupedDataset[Self]:
        """Group the rows by the values of one or more columns.

        Groups come in ascending order of their keys. Nulls are a group of their own, the last one, and so is
        NaN, before it.

        Parameters
        ----------
        key
            A column, or a list of columns.
        target_block_bytes
            Approximate bytes of keys and aggregated columns that a block of the result is made of. None: 256 MiB,
            or 16 MiB where that makes at most 8 blocks.

        Raises
        ------
        PlanError
            If a column does not exist or has no order.

        Examples
        --------
        >>> import windrow
        >>> ds = windrow.from_items([{"k": "a", "x": 1}, {"k": "b", "x": 5}, {"k": "a", "x": 2}])
        >>> ds.groupby("k").sum("x").take()
        [{'k': 'a', 'sum(x)': 3}, {'k': 'b', 'sum(x)': 5}]
        """
        size = None if target_block_bytes is None else parse_bytes(target_block_bytes, "target_block_bytes")
        keys = list_keys(key, "groupby()")
        check_keys(make_parent(self._plan).known_schema, keys, "groupby()")
        return GroupedDataset(
            type(self),
            self._plan,
            keys,
            lambda aggregates, call: type(self)(_group_plan(self._plan, keys, aggregates, size, call)),
        )

    def aggregate(self, **aggregates: Any) -> dict[str, Any]:
        """Aggregate all rows, now, and return a dict of plain values.

        Parameters
        ----------
        **aggregates
            The name of each value, and what it is: ``("column", "function")`` with one of ``count``, ``sum``,
            ``mean``, ``min``, ``max`` and ``std``, or ``"count"`` for the number of rows. All ignore nulls. What has no
            values is None, and a count is 0.

        Raises
        ------
        PlanError
            If a column does not exist, or a function does not fit its type.

        Examples
        --------
        >>> import windrow
        >>> windrow.range(5).aggregate(total=("id", "sum"), rows="count")
        {'total': 10, 'rows': 5}
        """
        return self._aggregate(parse_aggregates(aggregates, "aggregate()"), "aggregate()")

    def sum(self, on: str) -> Any:
        """Return the sum of a column; None without values.

        Examples
        --------
        >>> import windrow
        >>> windrow.range(5).sum("id")
        10
        """
        return self._aggregate_one("sum", on)

    def mean(self, on: str) -> Any:
        """Return the mean of a column, as a float; None without values."""
        return self._aggregate_one("mean", on)

    def min(self, on: str) -> Any:
        """Return the smallest value of a column, NaN left out if there are others; None without values."""
        return self._aggregate_one("min", on)

    def max(self, on: str) -> Any:
        """Return the largest value of a column, NaN left out if there are others; None without values."""
        return self._aggregate_one("max", on)

    def std(self, on: str, ddof: int = 1) -> Any:
        """Return the standard deviation of a column, of n - ``ddof`` degrees of freedom; None without any.

        Examples
        --------
        >>> import windrow
        >>> windrow.from_items([{"x": 1.0}, {"x": 3.0}]).std("x", ddof=0)
        1.0
        """
        return self._aggregate_one("std", on, check_ddof(ddof))

    def unique(self, column: str) -> list[Any]:
        """Return the distinct values of a column in ascending order; NaN and None, if any, come last.

        The values must fit into memory; the rows need not.

        Raises
        ------
        PlanError
            If the column does not exist or has no order.

        Examples
        --------
        >>> import windrow
        >>> windrow.from_items(["b", None, "a", "b"]).unique("item")
        ['a', 'b', None]
        """
        (key,) = list_keys(column, "unique()")
        plan = _group_plan(self._plan, (key,), (), None, f"unique({key!r})")
        found: list[Any] = read_head(plan.source, (), _ALL).column(key).to_pylist()
        return found

    def _aggregate_one(self, function: str, on: str, ddof: int = 1) -> Any:
        return self._aggregate((Aggregate(function, function, on, ddof),), f"{function}({on!r})")[function]

    def _aggregate(self, aggregates: tuple[Aggregate, ...], call: str) -> dict[str, Any]:
        plan = _group_plan(self._plan, (), aggregates, None, call)
        (address,) = plan.source.addresses([0])
        rows: list[dict[str, Any]] = plan.source.reader.read(address).to_pylist()
        return rows[0]


def _group_plan(
    plan: LogicalPlan,
    keys: tuple[str, ...],
    aggregates: tuple[Aggregate, ...],
    target_bytes: int | None,
    call: str,
) -> LogicalPlan:
    parent = make_parent(plan)
    schema = parent.known_schema
    if schema is not None:
        _check(schema, keys, aggregates, call)
    columns = [*keys, *(aggregate.on for aggregate in aggregates if aggregate.on is not None)]
    partitions = _count_partitions(parent, target_bytes, columns) if keys else 1
    make = partial(_make_group, keys, aggregates, partitions, call)
    return exchange_plan(plan, parent, ExchangePlan(make, partitions, OutputRows.AT_MOST), call)


def _count_partitions(parent: Parent, target_bytes: int | None, columns: Sequence[str]) -> int:
    if target_bytes is not None:
        return plan_partitions(parent, target_bytes, columns)
    small = plan_partitions(parent, _SMALL_PARTITION_BYTES, columns)
    return max(min(small, _SMALL_PARTITIONS), plan_partitions(parent, _PARTITION_BYTES, columns))


def _make_group(
    keys: tuple[str, ...], aggregates: tuple[Aggregate, ...], partitions: int, call: str, parent: Parent
) -> GroupOperation:
    _check(parent.schema, keys, aggregates, call)
    return GroupOperation(keys, aggregates, partitions)


def _check(schema: Any, keys: tuple[str, ...], aggregates: tuple[Aggregate, ...], call: str) -> None:
    check_keys(schema, keys, call)
    for aggregate in aggregates:
        if aggregate.on is not None:
            check_column(schema, aggregate.on, call)
        aggregate.check(schema, call)
        if aggregate.name in keys:
            raise PlanError(
                f"{call}: {aggregate.name!r} is the name of a key: give the aggregate another name"
            )
