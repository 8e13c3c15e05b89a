"""from_items, from_numpy, from_pandas and from_arrow: values, arrays, frames and tables in memory as a Dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.byte_sizes import parse_bytes
from windrow.core.errors import PlanError
from windrow.dataset.argument_checks import check_table
from windrow.dataset.dataset import Dataset
from windrow.dataset.logical_plan import tables_plan
from windrow.pipeline.tasks.to_arrow import to_arrow

if TYPE_CHECKING:
    import pandas as pd

_ARRAY_COLUMN = "data"


def from_items(items: Iterable[Any], *, target_block_bytes: int | str = "64MiB") -> Dataset:
    """Return a dataset of Python values, one per row.

    Parameters
    ----------
    items
        Dicts with one value per column (missing keys are null), or single values, which become
        column ``"item"``. Arrays of equal shape become (rows, ...) columns.
    target_block_bytes
        Approximate size of a block: an integer, or a string such as ``"64MiB"``.

    Raises
    ------
    PlanError
        If there are no items, they cannot be converted to columns, or are a dict or text.

    Examples
    --------
    >>> import windrow
    >>> windrow.from_items([3, 1, 2]).take(2)
    [{'item': 3}, {'item': 1}]
    >>> windrow.from_items([{"x": 1, "y": "a"}, {"x": 2}]).take()
    [{'x': 1, 'y': 'a'}, {'x': 2, 'y': None}]
    """
    if isinstance(items, (Mapping, str)):
        raise PlanError(
            f"from_items: the items of a {type(items).__name__} would be its keys or characters; give a list of rows, "
            "as in [{'x': 1}, {'x': 2}], or a dict of columns to from_numpy()"
        )
    return dataset_of_tables([table_of_items(items, "from_items")], "from_items", target_block_bytes)


def from_numpy(
    arrays: NDArray[Any] | Mapping[str, NDArray[Any]] | list[Any],
    *,
    target_block_bytes: int | str = "64MiB",
) -> Dataset:
    """Return a dataset of NumPy arrays, (rows, ...) each.

    Numbers are not copied: do not change the arrays while the dataset is in use. Arrays of two
    or more dimensions become tensor columns, which are delivered as (rows, ...) arrays.

    Parameters
    ----------
    arrays
        An array, which becomes column ``"data"``; a dict of arrays, one per column; or a list of
        either, which are concatenated.
    target_block_bytes
        Approximate size of a block: an integer, or a string such as ``"64MiB"``.

    Raises
    ------
    PlanError
        If arrays differ in length, have no axis of rows, or have a type that Arrow does not support;
        for a tuple, which could mean columns or rows.
    SourceError
        If the elements of a list differ in columns or types.

    Examples
    --------
    >>> import numpy as np, windrow
    >>> ds = windrow.from_numpy({"x": np.arange(4), "image": np.zeros((4, 2, 3), np.float32)})
    >>> batch = ds.take_batch(3)
    >>> batch["x"], batch["image"].shape
    (array([0, 1, 2]), (3, 2, 3))
    """
    parts = arrays if isinstance(arrays, list) else [arrays]
    if any(isinstance(part, tuple) for part in parts):
        raise PlanError(
            "from_numpy: a tuple of arrays could mean columns or rows; give a dict for columns, as in "
            "{'x': x, 'y': y}, or a list of arrays to concatenate"
        )
    columns = [part if isinstance(part, Mapping) else {_ARRAY_COLUMN: part} for part in parts]
    tables = [table_of_arrays(part, "from_numpy") for part in columns]
    return dataset_of_tables(tables, "from_numpy", target_block_bytes)


def from_pandas(
    frames: pd.DataFrame | Sequence[pd.DataFrame], *, target_block_bytes: int | str = "64MiB"
) -> Dataset:
    """Return a dataset of pandas DataFrames.

    Numbers without nulls are not copied: do not change the frames while the dataset is in use.
    NaN stays NaN in columns of NumPy floats and becomes null in all others.

    Parameters
    ----------
    frames
        A DataFrame, or a list of DataFrames with the same columns, which are concatenated. An
        index, unless it is an unnamed RangeIndex, becomes the first column or columns, called by
        its name, else ``"index"``.
    target_block_bytes
        Approximate size of a block: an integer, or a string such as ``"64MiB"``.

    Raises
    ------
    PlanError
        If Arrow cannot hold a column; the message names it.
    SourceError
        If frames differ in columns or types.

    Examples
    --------
    >>> import pandas as pd, windrow
    >>> windrow.from_pandas(pd.DataFrame({"x": [1, 2], "y": ["a", None]})).take()
    [{'x': 1, 'y': 'a'}, {'x': 2, 'y': None}]
    """
    parts = frames if isinstance(frames, (list, tuple)) else [frames]
    tables = [table_of_frame(frame, "from_pandas") for frame in parts]
    return dataset_of_tables(tables, "from_pandas", target_block_bytes)


def from_arrow(
    tables: pa.Table | pa.RecordBatch | pa.RecordBatchReader | Sequence[pa.Table | pa.RecordBatch],
    *,
    target_block_bytes: int | str = "64MiB",
) -> Dataset:
    """Return a dataset of Arrow tables, without copying them.

    Parameters
    ----------
    tables
        A Table, a RecordBatch, a RecordBatchReader (read to its end now), any other object that
        exports an Arrow stream, or a list of these, which are concatenated. Their chunks do not
        matter.
    target_block_bytes
        Approximate size of a block: an integer, or a string such as ``"64MiB"``.

    Raises
    ------
    PlanError
        For any other object, or a table without columns.
    SourceError
        If tables differ in columns or types, or a table's buffers are invalid.

    Examples
    --------
    >>> import pyarrow as pa, windrow
    >>> ds = windrow.from_arrow(pa.table({"x": range(6)}), target_block_bytes=16)
    >>> ds.num_blocks(), ds.count()
    (3, 6)
    """
    parts = tables if isinstance(tables, (list, tuple)) else [tables]
    return dataset_of_tables([_to_table(part) for part in parts], "from_arrow", target_block_bytes)


def _to_table(value: Any) -> pa.Table:
    if isinstance(value, pa.RecordBatch):
        value = pa.Table.from_batches([value])
    elif isinstance(value, pa.RecordBatchReader):
        value = value.read_all()
    elif not isinstance(value, pa.Table) and hasattr(value, "__arrow_c_stream__"):
        value = pa.RecordBatchReader.from_stream(value).read_all()
    if not isinstance(value, pa.Table):
        raise PlanError(
            f"from_arrow: {type(value).__qualname__} is not a Table, RecordBatch or RecordBatchReader; "
            "give one, or a list of them"
        )
    return check_table(value, "from_arrow")


def dataset_of_tables(tables: Sequence[pa.Table], caller: str, target_block_bytes: int | str) -> Dataset:
    """Return a dataset of the concatenated tables; ``caller`` is named in error messages."""
    if not tables:
        raise PlanError(f"{caller}: there is nothing to read; give at least one")
    size = parse_bytes(target_block_bytes, "target_block_bytes")
    return Dataset(tables_plan(tables, caller, size))


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
