"""groupby, aggregate and unique; `GroupedDataset`: the groups of a dataset, to be aggregated or mapped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Generic, TypeVar

import pyarrow as pa

from windrow.core.arrow_support import concat_rows, empty_table
from windrow.core.byte_sizes import parse_bytes
from windrow.core.errors import PlanError
from windrow.core.missing_names import NamesMissing
from windrow.core.terminal_text import escape_controls
from windrow.core.user_functions import function_name
from windrow.dataset.argument_checks import check_keys, list_keys
from windrow.dataset.logical_plan import LogicalPlan, exchange_plan, make_parent
from windrow.dataset.operations.order_methods import sort_plan
from windrow.dataset.readable import Readable
from windrow.pipeline.delivery.batch_formats import BatchFormat, check_format, convert
from windrow.pipeline.exchange.derived_source import DEFAULT_BLOCK_BYTES, Parent
from windrow.pipeline.exchange.exchange_source import ExchangePlan, OutputRows, plan_partitions
from windrow.pipeline.exchange.group_operation import Aggregate, GroupOperation, check_ddof, parse_aggregates
from windrow.pipeline.plan.head import read_head
from windrow.pipeline.tasks.key_columns import check_column, find_group_starts, plain_columns
from windrow.pipeline.tasks.map_batches import MapBatches
from windrow.pipeline.tasks.transform_results import result_to_table
from windrow.pipeline.tasks.transforms import as_one_batch, check_schema

Self = TypeVar("Self", bound="GroupMethods")
# Partial results are smaller than the rows that they are made of, so partitions can be of more rows than blocks. Up
# to a few smaller ones let cores share the work.
_PARTITION_BYTES = 256 * 2**20
_SMALL_PARTITION_BYTES = 16 * 2**20
_SMALL_PARTITIONS = 8
_ALL = 2**62
D = TypeVar("D")


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
        return GroupedDataset(type(self), self._plan, keys, size)

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
        return self._aggregate(parse_aggregates(aggregates), "aggregate()")

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
    return GroupOperation(partitions, keys, (False,) * len(keys), aggregates)


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


class GroupedDataset(NamesMissing, Generic[D]):
    """The rows of a dataset by groups, as `Dataset.groupby` returns them; lazy and immutable.

    Each method returns a Dataset with one row a group: the keys, and then the results, in ascending order of the
    keys. Aggregates ignore nulls; without any value they are null, and a count is 0. Sums of integers stay
    integers of 64 bits and wrap around beyond them; ``mean`` and ``std`` are computed in float64.

    Examples
    --------
    >>> import windrow
    >>> ds = windrow.from_items([{"k": "a", "x": 1}, {"k": None, "x": 5}, {"k": "a", "x": 2}])
    >>> ds.groupby("k").aggregate(total=("x", "sum"), rows="count").take()
    [{'k': 'a', 'total': 3, 'rows': 2}, {'k': None, 'total': 5, 'rows': 1}]
    """

    def __init__(
        self, kind: Callable[[LogicalPlan], D], plan: LogicalPlan, keys: tuple[str, ...], size: int | None
    ) -> None:
        self._kind = kind
        self._plan = plan
        self._keys = keys
        # the target_block_bytes of groupby()
        self._size = size

    def __repr__(self) -> str:
        return escape_controls(f"GroupedDataset\n  {self._plan}\n  .{self._call}", keep="\n")

    def aggregate(self, **aggregates: Any) -> D:
        """Aggregate each group.

        Parameters
        ----------
        **aggregates
            The name of each column of the result, and what it is: ``("column", "function")`` with one of ``count``,
            ``sum``, ``mean``, ``min``, ``max`` and ``std``, or ``"count"`` for the number of rows.

        Raises
        ------
        PlanError
            If a column does not exist, a function does not fit its type, or a name is that of a key.
        """
        return self._group(parse_aggregates(aggregates), f"aggregate({aggregates})")

    def count(self) -> D:
        """Count the rows of each group, as column ``count()``."""
        return self._group((Aggregate("count()", "count"),), "count()")

    def sum(self, on: str | list[str]) -> D:
        """Add up one or more columns, as ``sum(...)``."""
        return self._one("sum", on)

    def mean(self, on: str | list[str]) -> D:
        """Return the means of one or more columns, as ``mean(...)``."""
        return self._one("mean", on)

    def min(self, on: str | list[str]) -> D:
        """Return the smallest values of one or more columns, as ``min(...)``; NaN is left out if there are others."""
        return self._one("min", on)

    def max(self, on: str | list[str]) -> D:
        """Return the largest values of one or more columns, as ``max(...)``; NaN is left out if there are others."""
        return self._one("max", on)

    def std(self, on: str | list[str], ddof: int = 1) -> D:
        """Return the standard deviations of one or more columns, as ``std(...)``; null for ``ddof`` rows or fewer."""
        return self._one("std", on, check_ddof(ddof))

    def map_groups(self, fn: Callable[[Any], Any], *, batch_format: BatchFormat = "numpy") -> D:
        """Apply a function to each group, in ascending order of the keys.

        A group must fit into memory; it has its rows in stored order.

        Parameters
        ----------
        fn
            Called with all rows of a group; returns any number of rows, as a dict of arrays, a DataFrame or a Table
            with the same columns and types for every group. It must be pure and thread-safe.
        batch_format
            Type of the group: ``"numpy"`` (a dict of arrays), ``"pandas"`` or ``"pyarrow"``.

        Raises
        ------
        PlanError
            If an argument is invalid.

        Examples
        --------
        >>> import windrow
        >>> ds = windrow.from_items([{"k": 1, "x": 1}, {"k": 2, "x": 5}, {"k": 1, "x": 2}])
        >>> ds.groupby("k").map_groups(lambda group: {"k": group["k"][:1], "last": group["x"][-1:]}).take()
        [{'k': 1, 'last': 2}, {'k': 2, 'last': 5}]
        """
        check_format(batch_format)
        # checks the function
        MapBatches(fn, batch_format)
        plan = sort_plan(
            self._plan,
            self._keys,
            (False,) * len(self._keys),
            DEFAULT_BLOCK_BYTES,
            self._call,
            keeps_groups=True,
        )
        stage = MapBatches(GroupCalls(fn, self._keys, batch_format), "pyarrow", preserves_rows=False)
        return self._kind(plan.mapped(stage))

    @property
    def _call(self) -> str:
        return f"groupby({self._keys[0] if len(self._keys) == 1 else list(self._keys)!r})"

    def _one(self, function: str, on: str | list[str], ddof: int = 1) -> D:
        names = [on] if isinstance(on, str) else list(on)
        aggregates = tuple(Aggregate(f"{function}({name})", function, name, ddof) for name in names)
        degrees = f", ddof={ddof}" if function == "std" else ""
        return self._group(aggregates, f"{function}({on!r}{degrees})")

    def _group(self, aggregates: tuple[Aggregate, ...], call: str) -> D:
        plan = _group_plan(self._plan, self._keys, aggregates, self._size, f"{self._call}.{call}")
        return self._kind(plan)


@dataclass(frozen=True)
class GroupCalls:
    """The function that `map_batches` gets for ``map_groups``."""

    fn: Callable[[Any], Any]
    keys: tuple[str, ...]
    batch_format: BatchFormat

    def __post_init__(self) -> None:
        # what errors call it
        object.__setattr__(self, "__qualname__", f"map_groups({function_name(self.fn)})")

    def __call__(self, table: pa.Table) -> pa.Table:
        """Return the results of all groups."""
        batch = as_one_batch(table, "map_groups")
        starts = find_group_starts(plain_columns(table, self.keys)).tolist()
        results: list[pa.Table] = []
        for start, stop in pairwise([*starts, table.num_rows]):
            group = batch.slice(start, stop - start)
            # a copy, since the function can put other arrays into its dict
            given = convert(group, self.batch_format, writable=False)
            arrays = dict(given) if self.batch_format == "numpy" else None
            result = result_to_table(self.fn(given), group, arrays)
            if not result.num_rows:
                continue
            if results:
                check_schema(results[0].schema, result.schema, f"group {self._name(group)}")
            results.append(result)
        return concat_rows(results) if results else empty_table(result.schema)

    def _name(self, group: pa.RecordBatch) -> str:
        row = group.select(list(self.keys)).slice(0, 1).to_pylist()[0]
        return ", ".join(f"{name}={value!r}" for name, value in row.items())
