"""distinct: the first of all rows that are equal, in bounded memory."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TypeVar

import pyarrow as pa

from windrow.core.byte_sizes import parse_bytes
from windrow.core.errors import PlanError
from windrow.dataset.argument_checks import list_keys
from windrow.dataset.logical_plan import exchange_plan, make_parent
from windrow.dataset.readable import Readable
from windrow.pipeline.exchange.derived_source import Parent
from windrow.pipeline.exchange.exchange_source import ExchangePlan, OutputRows, plan_partitions
from windrow.pipeline.exchange.operations import DistinctOperation
from windrow.pipeline.tasks.key_columns import check_column, is_comparable

Self = TypeVar("Self", bound="DistinctMethods")


class DistinctMethods(Readable):
    """The method of a dataset that leaves out repeated rows."""

    def distinct(
        self: Self, columns: str | Sequence[str] | None = None, *, target_block_bytes: int | str = "64MiB"
    ) -> Self:
        """Return one row for each combination of values of some columns: of equal rows, the first in stored order.

        A null equals a null, NaN equals NaN, and -0.0 equals 0.0. The rows are spilled once, when the first of them
        is needed. Blocks of the result are partitions by a stable hash of the values, and rows keep their stored
        order within a block. So a result of one block is in stored order; `sort` puts a larger one in order.

        Parameters
        ----------
        columns
            A column, or a list of columns, whose values are compared; the result has the other columns too. None: all
            columns, except that of ``options(row_id_column=...)``. Numbers, text, bytes, decimals, booleans and times
            can be compared.
        target_block_bytes
            Approximate size of a block of the result if no row repeats.

        Raises
        ------
        PlanError
            If a column does not exist or cannot be compared, such as one of lists, or an argument is invalid.

        Examples
        --------
        >>> import windrow
        >>> ds = windrow.from_items([{"url": "a", "x": 1}, {"url": "b", "x": 2}, {"url": "a", "x": 3}])
        >>> ds.distinct("url").take()
        [{'url': 'a', 'x': 1}, {'url': 'b', 'x': 2}]
        >>> ds.union(ds).distinct().count()
        3
        """
        names = None if columns is None else list_keys(columns, "distinct()")
        size = parse_bytes(target_block_bytes, "target_block_bytes")
        given = "" if names is None else repr(names[0] if len(names) == 1 else list(names))
        call = f"distinct({given})"
        parent = make_parent(self._plan)
        ignored = self._plan.options.row_id_column
        if parent.known_schema is not None:
            _find_compared(names, ignored, call, parent.known_schema)
        partitions = plan_partitions(parent, size)
        make = partial(_make_distinct, names, ignored, partitions, call)
        plan = ExchangePlan(make, partitions, OutputRows.AT_MOST)
        return type(self)(exchange_plan(self._plan, parent, plan, call))


def _make_distinct(
    names: tuple[str, ...] | None, ignored: str | None, partitions: int, call: str, parent: Parent
) -> DistinctOperation:
    return DistinctOperation(partitions, _find_compared(names, ignored, call, parent.schema))


def _find_compared(
    names: tuple[str, ...] | None, ignored: str | None, call: str, schema: pa.Schema
) -> tuple[str, ...]:
    """Return the columns to compare, or raise a PlanError."""
    found = tuple(name for name in schema.names if name != ignored) if names is None else names
    if not found:
        raise PlanError(f"{call}: there are no columns to compare")
    unfit = [name for name in found if not is_comparable(check_column(schema, name, call))]
    if unfit:
        others = [name for name in found if name not in unfit]
        hint = f"compare others, as in distinct({others!r}), or " if names is None and others else ""
        raise PlanError(
            f"{call}: column {unfit[0]!r} is {schema.field(unfit[0]).type}, whose values cannot be compared here: "
            f"{hint}use map_batches() to make a column of numbers, text, bytes, decimals, booleans or times of it"
        )
    return found
