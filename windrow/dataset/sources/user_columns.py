"""Converts the user's in-memory data (arrays, items, DataFrames) to Arrow tables; errors name the column."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.core.errors import PlanError
from windrow.pipeline.tasks.to_arrow import to_arrow

__all__ = ["is_frame", "table_of_arrays", "table_of_frame", "table_of_items"]


def table_of_arrays(columns: Mapping[str, Any], caller: str) -> pa.Table:
    """Return a table of arrays, (rows, ...) each, without copying numbers."""
    if not columns:
        raise PlanError(f"{caller}: there are no columns; give at least one")
    _check_names(list(columns), caller)
    arrays = {name: _convert(name, values, caller, to_column) for name, values in columns.items()}
    _check_lengths(arrays, caller)
    return pa.table(arrays)


def to_column(values: Any) -> pa.ChunkedArray:
    """Convert an array, a torch tensor (without importing torch) or a list to a column."""
    values = _to_numpy(values)
    if isinstance(values, np.ndarray) and not values.ndim:
        raise TypeError("it is a single value: give an array with an axis of rows")
    if values is None or isinstance(values, (str, bytes)) or np.isscalar(values):
        raise TypeError("it is a single value: give one value for each row")
    return to_arrow(values, None)


def _to_numpy(values: Any) -> Any:
    """Convert objects that have ``numpy()``, such as tensors on any device; return others unchanged."""
    if isinstance(values, np.ndarray) or not hasattr(values, "numpy"):
        return values
    for step in ("detach", "cpu", "resolve_conj", "resolve_neg"):
        values = getattr(values, step, lambda values=values: values)()
    try:
        return values.numpy()
    except TypeError as error:
        raise TypeError(f"{error}: convert it to a type that NumPy has, as in .float()") from error


def table_of_items(items: Iterable[Any], caller: str) -> pa.Table:
    """Return a table of rows: dicts with one value per column (missing keys are null), or single values."""
    try:
        rows = list(items)
    except TypeError as error:
        raise PlanError(
            f"{caller}: {type(items).__qualname__} is not iterable; give a list of rows"
        ) from error
    if not rows:
        raise PlanError(f"{caller}: there are no items, so the columns are unknown; give at least one")
    dicts = sum(isinstance(row, Mapping) for row in rows)
    if dicts not in (0, len(rows)):
        raise PlanError(f"{caller}: {dicts} of {len(rows)} items are dicts; give dicts only, or none")
    if not dicts:
        return table_of_arrays({"item": _join(rows)}, caller)
    names = dict.fromkeys(name for row in rows for name in row)
    return table_of_arrays({name: _join([row.get(name) for row in rows]) for name in names}, caller)


def _join(values: Sequence[Any]) -> Any:
    """Stack the values into one array if all are arrays of one type and shape; else return a list."""
    arrays = [_to_numpy(value) for value in values]
    kinds = {(array.dtype, array.shape) if isinstance(array, np.ndarray) else None for array in arrays}
    if len(kinds) == 1 and None not in kinds:
        return np.stack(arrays)
    return [array[()] if isinstance(array, np.ndarray) and not array.ndim else array for array in arrays]


def is_frame(value: Any) -> bool:
    """Return whether ``value`` is a pandas object with rows, without importing pandas."""
    return type(value).__module__.partition(".")[0] == "pandas" and hasattr(value, "iloc")


def table_of_frame(frame: Any, caller: str) -> pa.Table:
    """Return a table of a DataFrame: first its index, unless it is an unnamed RangeIndex, then its columns."""
    if not is_frame(frame) or not hasattr(frame, "columns"):
        raise PlanError(
            f"{caller}: {type(frame).__qualname__} is not a pandas DataFrame; give one, or a list of them"
        )
    levels = _index_levels(frame.index)
    _check_names([*levels, *frame.columns], caller)
    series = {**levels, **{name: frame[name] for name in frame.columns}}
    if not series:
        raise PlanError(f"{caller}: a DataFrame has no columns; give at least one")
    return pa.table({name: _convert(name, values, caller, _of_series) for name, values in series.items()})


def _index_levels(index: Any) -> dict[Any, Any]:
    """Return the levels of an index by name; empty for an unnamed RangeIndex."""
    if type(index).__name__ == "RangeIndex" and index.names == [None]:
        return {}
    default = "index" if index.nlevels == 1 else "level_{}"
    names = [default.format(level) if name is None else name for level, name in enumerate(index.names)]
    return {name: index.get_level_values(level).to_series() for level, name in enumerate(names)}


def _of_series(series: Any) -> pa.ChunkedArray:
    """Convert a Series to a column; NaN stays NaN in NumPy floats and means null in all other types."""
    if isinstance(series.dtype, np.dtype) and series.dtype.kind == "O":
        return to_arrow(series, None, nan_is_null=True)
    is_float = isinstance(series.dtype, np.dtype) and series.dtype.kind == "f"
    array = pa.array(series, from_pandas=not is_float)
    return array if isinstance(array, pa.ChunkedArray) else pa.chunked_array([array])


def _convert(
    name: str, values: Any, caller: str, convert: Callable[[Any], pa.ChunkedArray]
) -> pa.ChunkedArray:
    try:
        return convert(values)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise PlanError(
            f"{caller}: column {name!r} cannot be held by Arrow ({type(error).__name__}: {error}); give "
            "numbers, text, bytes, times, or arrays of these, all of one type"
        ) from error


def _check_names(names: Sequence[Any], caller: str) -> None:
    for name in names:
        if not isinstance(name, str):
            raise PlanError(f"{caller}: a column is named {name!r}; column names are strings: rename it")
    duplicates = sorted({name for name in names if names.count(name) > 1})
    if duplicates:
        raise PlanError(f"{caller}: several columns are named {duplicates[0]!r}: give each its own name")


def _check_lengths(columns: Mapping[str, pa.ChunkedArray], caller: str) -> None:
    if len({len(column) for column in columns.values()}) > 1:
        lengths = ", ".join(f"{name!r} has {len(column)}" for name, column in columns.items())
        raise PlanError(f"{caller}: columns of unequal length: {lengths}; give one value per row in each")
