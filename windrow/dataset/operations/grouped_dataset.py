"""`GroupedDataset`: the groups of a dataset, to be aggregated or mapped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from windrow.core.terminal_text import escape_controls
from windrow.dataset.logical_plan import LogicalPlan
from windrow.dataset.operations.group_calls import GroupCalls
from windrow.dataset.operations.order_methods import sort_plan
from windrow.pipeline.delivery.batch_formats import BatchFormat, check_format
from windrow.pipeline.exchange.derived_source import DEFAULT_BLOCK_BYTES
from windrow.pipeline.exchange.group_operation import Aggregate, check_ddof, parse_aggregates
from windrow.pipeline.tasks.map_batches import MapBatches

__all__ = ["GroupedDataset"]

D = TypeVar("D")


class GroupedDataset(Generic[D]):
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
        self,
        kind: Callable[[LogicalPlan], D],
        plan: LogicalPlan,
        keys: tuple[str, ...],
        group: Callable[[tuple[Aggregate, ...], str], D],
    ) -> None:
        self._kind = kind
        self._plan = plan
        self._keys = keys
        self._group = group

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
        return self._group(
            parse_aggregates(aggregates, "aggregate()"), f"{self._call}.aggregate({aggregates})"
        )

    def count(self) -> D:
        """Count the rows of each group, as column ``count()``."""
        return self._group((Aggregate("count()", "count"),), f"{self._call}.count()")

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
        return self._group(aggregates, f"{self._call}.{function}({on!r}{degrees})")
