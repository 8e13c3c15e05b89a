"""What a function of ``map_batches`` gets, and functions on batches made of one on rows, expressions or columns."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from windrow.core.chosen_rows import filter_rows
from windrow.core.errors import PlanError, TransformError
from windrow.core.optional_dependencies import require
from windrow.core.user_functions import raise_interrupt
from windrow.io.catalog.filters import digest_filter, evaluate_filter
from windrow.pipeline.delivery.batch_formats import BatchFormat, check_format, convert, rows
from windrow.pipeline.tasks.row_generator import RowGenerator
from windrow.pipeline.tasks.transform_results import result_to_table

FunctionFormat = BatchFormat | Literal["torch"]


def check_function_format(batch_format: str) -> None:
    """Raise PlanError if a format does not exist, or its library is not installed."""
    if batch_format == "torch":
        require("torch", "torch", 'batch_format="torch"')
        return
    try:
        check_format(batch_format)
    except PlanError as error:
        raise PlanError(f"{error}, 'torch'" if "is unknown" in str(error) else str(error)) from error


def function_batch(batch: pa.RecordBatch, batch_format: FunctionFormat) -> Any:
    """Convert a batch for a function; NumPy arrays are views, and read-only."""
    if batch_format == "torch":
        from windrow.pipeline.delivery.tensors.column_tensors import to_torch

        return to_torch(batch)
    return convert(batch, batch_format, writable=False)


_Row = dict[str, Any]


class RowError(Exception):
    """A user's function failed for a row of its batch, given by its number."""

    def __init__(self, row: int, error: BaseException) -> None:
        super().__init__(row, error)
        self.row = row
        self.error = error


class RowFunction(ABC):
    """A function on tables that treats each row by itself, so that rows that fail are known."""

    @property
    def draws_decide_rows(self) -> bool:
        """Whether its random numbers can decide how many rows there are, if it changes that."""
        return True

    @abstractmethod
    def __call__(self, table: pa.Table, *args: Any, rng: RowGenerator | None = None, **kwargs: Any) -> Any:
        """The result for the rows of a table; raises a `RowError` at the first row that fails."""

    @abstractmethod
    def failing(
        self, table: pa.Table, *args: Any, rng: RowGenerator | None = None, **kwargs: Any
    ) -> list[RowError]:
        """An error for each row that fails by itself."""


class EachRow(RowFunction):
    """A function on tables that calls a user's function for each row, a dict of Python values."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn

    def __call__(self, table: pa.Table, *args: Any, rng: RowGenerator | None = None, **kwargs: Any) -> Any:
        results: list[Any] = []
        for at, (row, of_row) in enumerate(self._calls(table, rng)):
            try:
                results.append(self._check(self.fn(row, *args, **of_row, **kwargs), results))
            except BaseException as error:
                raise RowError(at, error) from error
        return self._combine(table, results)

    def failing(
        self, table: pa.Table, *args: Any, rng: RowGenerator | None = None, **kwargs: Any
    ) -> list[RowError]:
        found: list[RowError] = []
        results: list[Any] = []
        for at, (row, of_row) in enumerate(self._calls(table, rng)):
            try:
                results.append(self._check(self.fn(row, *args, **of_row, **kwargs), results))
            except BaseException as error:
                raise_interrupt(error)
                found.append(RowError(at, error))
        return found or self._find_unfit(table, results)

    def _find_unfit(self, table: pa.Table, results: Sequence[Any]) -> list[RowError]:
        """An error for each row whose result cannot become a row of a table."""
        return []

    def _calls(self, table: pa.Table, rng: RowGenerator | None) -> Iterator[tuple[_Row, dict[str, Any]]]:
        given = repeat({}) if rng is None else ({"rng": generator} for generator in rng.generators())
        all_rows = (row for batch in table.to_batches() for row in rows(batch))
        return zip(all_rows, given, strict=False)

    def _check(self, result: Any, results: Sequence[Any]) -> Any:
        """Return a row's result; raise an error if it does not fit the function, or the results before it."""
        return result

    @abstractmethod
    def _combine(self, table: pa.Table, results: list[Any]) -> Any:
        """What the rows' results make together."""


class _MakesRows(EachRow):
    """A function that makes new rows of each row."""

    def _find_unfit(self, table: pa.Table, results: Sequence[Any]) -> list[RowError]:
        """An error for each row whose result Arrow cannot hold, or not beside that of the first row that it holds."""
        batch, *_ = table.to_batches()
        found: list[RowError] = []
        first: list[Any] = []
        for at, result in enumerate(results):
            try:
                result_to_table(self._combine(table, [*first, result]), batch)
            except TransformError as error:
                found.append(RowError(at, TypeError(str(error))))
            else:
                # of `flat_map`, one that makes rows
                first = first or ([result] if result else [])
        return found


class MapRows(_MakesRows):
    """``map``: each row becomes another one."""

    def _check(self, result: Any, results: Sequence[Any]) -> Any:
        return _check_row(result, results[0] if results else None)

    def _combine(self, table: pa.Table, results: list[Any]) -> Any:
        return _columns(results)


class FlatMapRows(_MakesRows):
    """``flat_map``: each row becomes any number of rows."""

    # of this table so far; an object runs in one thread at a time
    _first: _Row | None = None

    def _check(self, result: Any, results: Sequence[Any]) -> Any:
        if isinstance(result, (Mapping, str, bytes)) or not hasattr(result, "__iter__"):
            raise TypeError(
                f"returned {_type_name(result)}; return a list of rows, each a dict of values by column"
            )
        first = self._first if results else None
        found: list[_Row] = []
        for row in result:
            found.append(_check_row(row, first or (found[0] if found else None)))
        self._first = first or (found[0] if found else None)
        return found

    def _combine(self, table: pa.Table, results: list[Any]) -> Any:
        made = [row for found in results for row in found]
        return _columns(made) if made else table.slice(0, 0)


class FilterRows(EachRow):
    """``filter``: rows stay for which the function is true."""

    def _check(self, result: Any, results: Sequence[Any]) -> Any:
        if not isinstance(result, (bool, np.bool_)):
            raise TypeError(f"returned {_type_name(result)}; return True to keep the row, or False")
        return bool(result)

    def _combine(self, table: pa.Table, results: list[Any]) -> Any:
        return filter_rows(table, pa.array(results, pa.bool_()))


def _check_row(row: Any, first: _Row | None) -> _Row:
    if not isinstance(row, Mapping):
        raise TypeError(f"returned {_type_name(row)}; return a row: a dict of values by column")
    if not row:
        raise ValueError("returned a row without columns")
    if first is not None and row.keys() != first.keys():
        raise ValueError(
            f"returned the columns {list(row)}, after {list(first)} for the rows before; return the same"
        )
    return dict(row)


def _columns(made: list[_Row]) -> dict[str, list[Any]]:
    return {name: [row[name] for row in made] for name in made[0]}


def _type_name(value: object) -> str:
    return "None" if value is None else f"an object of type {type(value).__qualname__}"


def is_expression(value: object) -> bool:
    """Whether a value is a pyarrow expression."""
    compute = sys.modules.get("pyarrow.compute")
    return compute is not None and isinstance(value, compute.Expression)


@dataclass(frozen=True)
class FilterExpression:
    """``filter`` with an expression: rows stay for which it is true, neither false nor null."""

    expression: Any

    @property
    def row_choice(self) -> str:
        """Which rows it chooses, for states."""
        return f"filter {digest_filter(self.expression)}"

    def __call__(self, table: pa.Table) -> pa.Table:
        return filter_rows(table, self.expression)


@dataclass(frozen=True)
class AddExpression:
    """``add_column`` with an expression."""

    name: str
    expression: Any

    def __call__(self, table: pa.Table) -> pa.Table:
        values = evaluate_filter(self.expression, table)
        if self.name in table.column_names:
            return table.set_column(table.column_names.index(self.name), self.name, values)
        return table.append_column(self.name, values)


@dataclass(frozen=True)
class AddColumn:
    """``add_column`` with a function, which gets the batch in its format and returns the values."""

    fn: Callable[..., Any]
    name: str
    batch_format: FunctionFormat

    def __call__(self, table: pa.Table, *args: Any, **kwargs: Any) -> dict[str, Any]:
        (batch,) = table.combine_chunks().to_batches()
        values = self.fn(function_batch(batch, self.batch_format), *args, **kwargs)
        others = dict(zip(table.column_names, table.columns, strict=True))
        return {**others, self.name: values}


@dataclass(frozen=True)
class SelectColumns:
    """``select_columns``."""

    columns: tuple[str, ...]

    def __call__(self, table: pa.Table) -> pa.Table:
        check_present(self.columns, table)
        return table.select(list(self.columns))


@dataclass(frozen=True)
class DropColumns:
    """``drop_columns``."""

    columns: tuple[str, ...]

    def __call__(self, table: pa.Table) -> pa.Table:
        check_present(self.columns, table)
        return table.drop_columns(list(self.columns))


@dataclass(frozen=True)
class RenameColumns:
    """``rename_columns``: new names by old ones."""

    names: tuple[tuple[str, str], ...]

    def __call__(self, table: pa.Table) -> pa.Table:
        new = dict(self.names)
        check_present(tuple(new), table)
        return table.rename_columns([new.get(name, name) for name in table.column_names])


def check_present(names: Sequence[str], table: pa.Table) -> None:
    """Raise KeyError if a table lacks one of some columns."""
    missing = [name for name in names if name not in table.column_names]
    if missing:
        raise KeyError(
            f"there is no column {missing[0]!r}; there are {', '.join(map(repr, table.column_names))}"
        )


@dataclass(frozen=True)
class SampleRows:
    """``random_sample``: each row stays with the same probability, by its position."""

    fraction: float
    seed: int

    @property
    def row_choice(self) -> str:
        """Which rows it chooses, for states."""
        return f"random_sample {self.fraction} {self.seed}"

    def __call__(self, table: pa.Table, *, rng: RowGenerator) -> pa.Table:
        return filter_rows(table, pa.array(rng.with_seed(self.seed).random() < self.fraction))
