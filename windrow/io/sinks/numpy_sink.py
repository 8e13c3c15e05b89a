"""Write NumPy files: ``.npy`` of one column, or ``.npz`` with one array per column."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, BinaryIO, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.errors import PlanError
from windrow.core.variable_tensors import is_variable_tensor
from windrow.io.sinks.sink import check_types

# the earliest time of ZIP; a constant, so that equal arrays give identical files
_ZIP_TIME = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class NumpySink:
    """Writes ``.npy`` files of ``column``, or ``.npz`` of all; see ``windrow.io.sinks.sink.Sink``."""

    name: ClassVar[str] = "NumPy"

    column: str | None = None
    compression: str | None = None

    def __post_init__(self) -> None:
        if self.compression not in (None, "deflate"):
            raise PlanError(f"compression={self.compression!r} must be 'deflate' or None")
        if self.compression and self.column is not None:
            raise PlanError(f"compression={self.compression!r}: .npy is not compressed; omit column=")

    @property
    def suffix(self) -> str:
        return ".npz" if self.column is None else ".npy"

    def check(self, schema: pa.Schema) -> None:
        if self.column is not None:
            if self.column not in schema.names:
                raise PlanError(f"column={self.column!r} is not there, only {', '.join(schema.names)}")
            schema = pa.schema([schema.field(self.column)])
        if not schema.names or any("/" in name or "\\" in name for name in schema.names):
            raise PlanError(f"NumPy cannot carry the names {schema.names} in a .npz: rename the columns")
        check_types(self.name, schema, npy_fix)

    def write(self, tables: Iterable[pa.Table], stream: BinaryIO, label: str) -> None:
        """Write one file, from memory: the header needs the array's final shape."""
        table = pa.concat_tables(list(tables)).combine_chunks()
        if self.column is not None:
            _save(stream, self.column, table.column(self.column))
            return
        method = zipfile.ZIP_DEFLATED if self.compression else zipfile.ZIP_STORED
        with zipfile.ZipFile(stream, "w", method) as archive:
            for name, column in zip(table.schema.names, table.columns, strict=True):
                info = zipfile.ZipInfo(f"{name}.npy", _ZIP_TIME)
                info.compress_type = method
                with archive.open(info, "w", force_zip64=True) as member:
                    _save(member, name, column)


def _save(stream: Any, name: str, column: pa.ChunkedArray) -> None:
    array = column.chunk(0) if column.num_chunks else pa.array([], column.type)
    np.lib.format.write_array(stream, np.ascontiguousarray(dense_rows(name, array)), allow_pickle=False)


def dense_rows(name: str, array: pa.Array) -> NDArray[Any]:
    """Convert a column to a (rows, ...) array; raise a PlanError if a value cannot be stored in one."""
    shape = [len(array)]
    if isinstance(array, pa.FixedShapeTensorArray):
        return _dense(name, array.storage).reshape(len(array), *array.type.shape)
    while pa.types.is_fixed_size_list(array.type):
        _check_no_nulls(name, array)
        shape.append(array.type.list_size)
        array = array.flatten()
    return _dense(name, array).reshape(shape)


def _dense(name: str, array: pa.Array) -> NDArray[Any]:
    if pa.types.is_fixed_size_list(array.type):
        _check_no_nulls(name, array)
        array = array.flatten()
    _check_no_nulls(name, array)
    if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
        return _texts(name, array)
    dense: NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return dense


def _texts(name: str, array: pa.Array) -> NDArray[Any]:
    texts = array.to_pylist()
    if any(text.endswith("\0") for text in texts):
        raise PlanError(f"column {name!r} has text that ends in a zero byte, which NumPy drops: encode it")
    return np.array(texts, dtype=np.str_)


def _check_no_nulls(name: str, array: pa.Array) -> None:
    if array.null_count:
        raise PlanError(
            f"column {name!r} has {array.null_count:,} nulls, which arrays cannot hold: fill them"
        )


def npy_fix(kind: pa.DataType) -> str | None:
    """How to fix a type that needs Python objects in an array; None if it does not."""
    types = pa.types
    if isinstance(kind, pa.FixedShapeTensorType):
        permuted = kind.permutation and list(kind.permutation) != sorted(kind.permutation)
        return "store it without a permutation" if permuted else npy_fix(kind.value_type)
    if is_variable_tensor(kind):
        return "scale its tensors to one shape, or write Parquet or Arrow"
    if types.is_fixed_size_list(kind):
        return npy_fix(kind.value_type)
    tests = (types.is_boolean, types.is_integer, types.is_floating, types.is_duration, types.is_date32)
    if any(test(kind) for test in (*tests, types.is_string, types.is_large_string)):
        return None
    if types.is_timestamp(kind):
        return None if kind.tz is None else "cast it to a timestamp without a time zone"
    if types.is_nested(kind):
        return "make it a fixed-size list of numbers, or write Parquet or Arrow"
    return "cast it to a number or text, or write Parquet or Arrow"
