"""Converts Arrow batches to NumPy, pandas or pyarrow tables (``batch_format``).

:mod:`windrow.pipeline.delivery.to_numpy` lists the NumPy type of each Arrow type. In pandas, integers and
booleans with nulls become the nullable types (``Int64``, ``boolean``), so that no value is rounded; times of
day are timedelta64 since midnight; tensors are objects, one array per row; everything else is as pyarrow
converts it. A DataFrame always owns its memory: it is writable and has a fresh RangeIndex.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.errors import PlanError
from windrow.core.optional_dependencies import require
from windrow.core.variable_tensors import is_variable_tensor
from windrow.pipeline.delivery.to_numpy import column_to_numpy, writable_view

if TYPE_CHECKING:
    import pandas as pd

BatchFormat = Literal["numpy", "pandas", "pyarrow"]
# the rows of every batch, of which the last one can have fewer, or of each
BatchRows = int | Sequence[int]
_FORMATS = get_args(BatchFormat)
_ROWS_PER_CHUNK = 1024


def check_format(batch_format: str) -> None:
    """Raise PlanError if a format does not exist, or its library is not installed."""
    if batch_format not in _FORMATS:
        known = ", ".join(repr(name) for name in _FORMATS)
        raise PlanError(f"batch_format={batch_format!r} is unknown: use one of {known}")
    if batch_format == "pandas":
        require("pandas", "pandas", 'batch_format="pandas"')


def batch_bounds(total: int, rows: BatchRows) -> Iterator[tuple[int, int]]:
    """Where each batch of ``total`` rows begins and ends."""
    if isinstance(rows, int):
        return ((start, min(start + rows, total)) for start in range(0, total, rows))
    return pairwise(accumulate(rows, initial=0))


def is_single_batch(total: int, rows: BatchRows) -> bool:
    """Whether ``total`` rows are one batch, or none."""
    return total <= rows if isinstance(rows, int) else len(rows) <= 1


def cut_batches(span: pa.RecordBatch, rows: BatchRows) -> Iterator[pa.RecordBatch]:
    """Cut a span into batches."""
    return (span.slice(start, stop - start) for start, stop in batch_bounds(span.num_rows, rows))


def convert(batch: pa.RecordBatch, batch_format: BatchFormat, *, writable: bool) -> Any:
    """Convert a batch; ``writable`` applies to the arrays of "numpy" only."""
    check_format(batch_format)
    if batch_format == "numpy":
        return to_numpy(batch, writable=writable)
    if batch_format == "pandas":
        return to_pandas(batch)
    return pa.Table.from_batches([batch])


def to_numpy(batch: pa.RecordBatch, *, writable: bool) -> dict[str, NDArray[Any]]:
    """Convert each column; with ``writable``, no two arrays share memory."""
    arrays = {
        name: column_to_numpy(column, writable=writable)
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    }
    return separate(arrays) if writable else arrays


def to_numpy_batches(span: pa.RecordBatch, rows: BatchRows) -> Iterator[dict[str, NDArray[Any]]]:
    """Convert a span to writable batches.

    Columns of plain memory are converted once for the whole span; their batches are views.
    """
    if is_single_batch(span.num_rows, rows):
        if span.num_rows:
            yield to_numpy(span, writable=True)
        return
    names = span.schema.names
    views = {name: writable_view(column) for name, column in zip(names, span.columns, strict=True)}
    plain = separate({name: view for name, view in views.items() if view is not None})
    others = [name for name in names if name not in plain]
    for start, stop in batch_bounds(span.num_rows, rows):
        arrays = {name: values[start:stop] for name, values in plain.items()}
        if others:
            converted = to_numpy(span.select(others).slice(start, stop - start), writable=True)
            arrays = separate({name: arrays[name] if name in arrays else converted[name] for name in names})
        yield arrays


def separate(arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Copy arrays that start at the address of an earlier one, so that writing to one changes only that one."""
    taken: set[int] = set()
    for name, array in arrays.items():
        address = array.__array_interface__["data"][0]
        if address in taken and array.size:
            arrays[name] = array.copy()
        taken.add(address)
    return arrays


def to_pandas(batch: pa.RecordBatch) -> pd.DataFrame:
    """Convert to a DataFrame that owns its memory."""
    import pandas as pd

    columns = {name: _series(column) for name, column in zip(batch.schema.names, batch.columns, strict=True)}
    return pd.DataFrame(columns, index=pd.RangeIndex(batch.num_rows), copy=True)


def _series(column: pa.Array) -> Any:
    import pandas as pd

    if isinstance(column.type, pa.FixedShapeTensorType):
        values = column_to_numpy(column, writable=True).copy()
        return pd.Series(np.fromiter(values, dtype=object, count=len(values)), dtype=object)
    if is_variable_tensor(column.type):
        return pd.Series(_copied_tensors(column), dtype=object)
    if pa.types.is_time(column.type):
        return pd.Series(column_to_numpy(column, writable=True))
    if column.null_count and (pa.types.is_integer(column.type) or pa.types.is_boolean(column.type)):
        return column.to_pandas(types_mapper=_nullable_types().get)
    return column.to_pandas()


def _nullable_types() -> dict[pa.DataType, Any]:
    import pandas as pd

    names = ("Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64")
    integers = {pa.type_for_alias(name.lower()): getattr(pd, f"{name}Dtype")() for name in names}
    return {**integers, pa.bool_(): pd.BooleanDtype()}


def rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Yield each row as a dict of Python values, as pyarrow's ``to_pylist`` makes them.

    Tensors of two or more dimensions become arrays instead of flat lists.
    """
    # as Python objects, a whole run would take many times its memory
    for start in range(0, batch.num_rows, _ROWS_PER_CHUNK):
        chunk = batch.slice(start, _ROWS_PER_CHUNK)
        names = chunk.schema.names
        if not names:
            yield from ({} for _ in range(chunk.num_rows))
            continue
        for values in zip(*map(_python_values, chunk.columns), strict=True):
            yield dict(zip(names, values, strict=True))


def _python_values(column: pa.Array) -> Any:
    if isinstance(column.type, pa.FixedShapeTensorType) and len(column.type.shape) > 1:
        # a copy: what Arrow marks as mutable can be the user's own data
        return column_to_numpy(column, writable=True).copy()
    return _copied_tensors(column) if is_variable_tensor(column.type) else column.to_pylist()


def _copied_tensors(column: pa.Array) -> list[Any]:
    return [None if tensor is None else tensor.copy() for tensor in column_to_numpy(column, writable=False)]
