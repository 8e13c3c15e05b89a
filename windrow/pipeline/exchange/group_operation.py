"""Aggregates of groups of rows: which exist, of which types, and how they are computed in parts.

A task aggregates its own rows, and range partitions of the keys combine these partial results. Everything ignores
nulls, and gives null where there are no values. `mean` and `std` are computed in float64 of (count, mean, squared
deviations), which combine without cancellation (Chan, Golub and LeVeque, 1979).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from numpy.typing import NDArray

from windrow.core.chosen_rows import take_rows
from windrow.core.errors import PlanError
from windrow.core.integers import as_integer
from windrow.pipeline.exchange.operations import Divided, KeyedOperation, MapTask
from windrow.pipeline.tasks.key_columns import (
    check_column,
    check_key,
    find_group_starts,
    plain_columns,
    sort_rows,
)

_FUNCTIONS = ("count", "sum", "mean", "min", "max", "std")
_NUMERIC = "numbers, decimals or booleans"
_PARTS = {
    "count": ("count",),
    "sum": ("sum",),
    "min": ("min",),
    "max": ("max",),
    "mean": ("double_count", "double_mean"),
    "std": ("double_count", "double_mean", "double_variance"),
}
_ALL_ROWS = "rows"


@dataclass(frozen=True)
class Aggregate:
    """One column of the result: its name, the function, and the column that it is of; None: of rows."""

    name: str
    function: str
    on: str | None = None
    ddof: int = 1

    @property
    def parts(self) -> list[str]:
        """The names of the partial results that it needs."""
        return [_ALL_ROWS] if self.on is None else [f"{part}:{self.on}" for part in _PARTS[self.function]]

    def check(self, schema: pa.Schema, call: str) -> None:
        """Raise a PlanError if the function does not fit the column."""
        if self.on is None:
            return
        kind = check_column(schema, self.on, call)
        if self.function in ("min", "max"):
            check_key(schema, self.on, call)
            if pt.is_dictionary(kind) or pt.is_duration(kind):
                raise PlanError(f"{call}: column {self.on!r} is {kind}: cast it with map_batches() first")
        numeric = pt.is_integer(kind) or pt.is_floating(kind) or pt.is_decimal(kind) or pt.is_boolean(kind)
        if self.function in ("sum", "mean", "std") and (not numeric or pt.is_float16(kind)):
            raise PlanError(
                f"{call}: {self.function} of column {self.on!r} needs {_NUMERIC}, and it is {kind}"
            )


def check_ddof(ddof: object) -> int:
    """Return ``ddof`` as an integer of 0 or more, or raise a PlanError."""
    number = as_integer(ddof)
    if number is None or number < 0:
        raise PlanError(f"ddof={ddof!r} must be an integer of 0 or more")
    return number


def parse_aggregates(given: Mapping[str, Any]) -> tuple[Aggregate, ...]:
    """Return the aggregates of ``aggregate(total=("x", "sum"), rows="count")``, or raise a PlanError."""
    if not given:
        raise PlanError('aggregate() needs at least one aggregate, such as total=("x", "sum")')
    return tuple(_parse(name, value) for name, value in given.items())


def _parse(name: str, value: Any) -> Aggregate:
    if value == "count":
        return Aggregate(name, "count")
    is_pair = isinstance(value, (tuple, list)) and len(value) == 2 and all(isinstance(v, str) for v in value)
    if not is_pair or value[1] not in _FUNCTIONS:
        raise PlanError(
            f'aggregate(): {name}={value!r} must be a column and one of {", ".join(_FUNCTIONS)}, as in {name}=("x", '
            f'"mean"), or "count" for the number of rows'
        )
    return Aggregate(name, value[1], value[0])


def _make_partials(table: pa.Table, keys: Sequence[str], aggregates: Sequence[Aggregate]) -> pa.Table:
    """Aggregate the rows of one task: the keys, and then every partial result."""
    columns = {f"key:{name}": table.column(name) for name in keys}
    wanted: list[tuple[Any, str, Any]] = []
    for part in _parts(aggregates):
        kind, _, name = part.partition(":")
        if kind == _ALL_ROWS:
            wanted.append(([], "count_all", None))
            continue
        if kind.startswith("double_"):
            columns[source := f"double:{name}"] = table.column(name).cast(pa.float64(), safe=False)
        else:
            columns[source := f"value:{name}"] = table.column(name)
        wanted.append((source, kind.removeprefix("double_"), _options(kind)))
    if not columns:
        # rows alone: Arrow has no table without columns that has rows
        return pa.table({_ALL_ROWS: pa.array([table.num_rows], pa.int64())})
    values = pa.table(columns)
    found = values.group_by([f"key:{name}" for name in keys], use_threads=False).aggregate(wanted)
    results = [
        found.column("count_all" if not source else f"{source}_{function}") for source, function, _ in wanted
    ]
    return pa.table(
        [*(found.column(f"key:{name}") for name in keys), *results], names=[*keys, *_parts(aggregates)]
    )


def _options(kind: str) -> Any:
    import pyarrow.compute as pc

    if kind == "double_variance":
        return pc.VarianceOptions(ddof=0)
    return None if kind.endswith("count") else pc.ScalarAggregateOptions(skip_nulls=True, min_count=1)


def _parts(aggregates: Sequence[Aggregate]) -> list[str]:
    return list(dict.fromkeys(part for aggregate in aggregates for part in aggregate.parts))


def _combine_partials(
    partials: pa.Table, starts: NDArray[np.int64], aggregates: Sequence[Aggregate], keys: int
) -> list[pa.ChunkedArray]:
    """Return the column of each aggregate, given partial results whose groups begin at ``starts``."""
    columns = dict(zip(_parts(aggregates), partials.columns[keys:], strict=True))
    lengths = np.diff(np.append(starts, partials.num_rows))
    groups = pa.array(np.repeat(np.arange(len(starts)), lengths))
    return [_combine(aggregate, columns, groups, starts) for aggregate in aggregates]


def _combine(
    aggregate: Aggregate, columns: Mapping[str, pa.ChunkedArray], groups: pa.Array, starts: NDArray[np.int64]
) -> Any:
    if aggregate.function in ("mean", "std"):
        return _combine_moments(aggregate, columns, groups.to_numpy(), starts)
    import pyarrow.compute as pc

    (part,) = aggregate.parts
    function = "sum" if aggregate.function == "count" else aggregate.function
    minimum = 0 if aggregate.function == "count" else 1
    options = pc.ScalarAggregateOptions(skip_nulls=True, min_count=minimum)
    table = pa.table({"group": groups, "part": columns[part]})
    return (
        table.group_by("group", use_threads=False)
        .aggregate([("part", function, options)])
        .column(f"part_{function}")
    )


def _combine_moments(
    aggregate: Aggregate,
    columns: Mapping[str, pa.ChunkedArray],
    groups: NDArray[np.int64],
    starts: NDArray[np.int64],
) -> pa.Array:
    parts = [columns[part] for part in aggregate.parts]
    if not len(starts):
        return pa.array([], pa.float64())
    counts, means, *variances = (part.fill_null(0).to_numpy().astype(np.float64) for part in parts)
    with np.errstate(invalid="ignore", over="ignore"):
        total = np.add.reduceat(counts, starts)
        mean = np.add.reduceat(counts * means, starts) / np.maximum(total, 1)
        if aggregate.function == "mean":
            return pa.array(mean, mask=total == 0)
        apart = np.where(counts > 0, means - mean[groups], 0)
        squares = np.add.reduceat(counts * (variances[0] + apart**2), starts)
        degrees = total - aggregate.ddof
        deviation = np.sqrt(squares / np.where(degrees > 0, degrees, 1))
    return pa.array(deviation, mask=degrees <= 0)


@dataclass(frozen=True, eq=False)
class GroupOperation(KeyedOperation):
    """The groups in the order of their keys, nulls last; without keys, all rows are one group."""

    aggregates: tuple[Aggregate, ...]

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The keys and what is aggregated; None where only rows are counted, which needs a column."""
        on = [aggregate.on for aggregate in self.aggregates if aggregate.on is not None]
        return tuple(dict.fromkeys([*self.keys, *on])) or None

    def divide(self, table: pa.Table, task: MapTask) -> Divided:
        decoded = plain_columns(table, self.keys)
        for place, name in enumerate(self.keys):
            table = table.set_column(table.schema.get_field_index(name), name, decoded.column(place))
        partials = _make_partials(table, self.keys, self.aggregates)
        return self.divide_by_key(partials, task, divides_equal=False)

    def merge(self, table: pa.Table, partition: int) -> pa.Table:
        if self.keys:
            order = sort_rows(plain_columns(table, self.keys), self.descending)
            table = take_rows(table, order).combine_chunks()
            starts = find_group_starts(plain_columns(table, self.keys))
        else:
            if not table.num_rows:
                # no rows are a group too
                table = pa.table([pa.nulls(1, kind) for kind in table.schema.types], schema=table.schema)
            starts = np.zeros(1, np.int64)
        found = take_rows(table.select(list(range(len(self.keys)))), starts)
        results = _combine_partials(table, starts, self.aggregates, len(self.keys))
        names = [*self.keys, *(aggregate.name for aggregate in self.aggregates)]
        return pa.table([*found.columns, *results], names=names)
