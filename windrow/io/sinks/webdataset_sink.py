"""Write WebDataset tar files: one member ``<key>.<column>`` per row and column.

Readers decode members by extension, so the column name's extension decides the encoding: ``npy`` is
an array, ``json`` is JSON, ``cls`` and similar are integers in digits, ``txt`` and similar are text.
Bytes and text can have any name; text under other names is read back as UTF-8 bytes. Null members
are omitted; a row of nulls only would be no sample, and is an error.
"""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, BinaryIO, ClassVar

import numpy as np
import pyarrow as pa

from windrow.core.errors import PlanError
from windrow.core.variable_tensors import is_variable_tensor, tensor_rows, tensor_value_type
from windrow.io.sinks.json_sink import json_fix, json_texts
from windrow.io.sinks.numpy_sink import dense_rows, npy_fix
from windrow.io.sinks.sink import CompressedSink, check_types, compressed

KEY = "__key__"

_ARRAYS = {"npy"}
_JSON = {"json", "jsn"}
_NUMBERS = {"cls", "cls2", "class", "count", "index", "inx", "id"}
_BATCH_ROWS = 256
# the rule of the webdataset library: the column follows the first dot of the last path component
_GOOD_KEY = re.compile(r"(?:.*/)?[^./]+", re.DOTALL)


@dataclass(frozen=True)
class WebDatasetSink(CompressedSink):
    """Writes WebDataset tar files; see ``windrow.io.sinks.sink.Sink``."""

    name: ClassVar[str] = "WebDataset"
    extension: ClassVar[str] = ".tar"
    compressions: ClassVar[Collection[str | None]] = (None, "gzip")

    def check(self, schema: pa.Schema) -> None:
        columns = [field for field in schema if field.name != KEY]
        if not columns:
            raise PlanError("WebDataset cannot carry rows without columns: read at least one")
        for field in columns:
            if not field.name or "/" in field.name or field.name.startswith("__"):
                raise PlanError(f"WebDataset: no member can be called {field.name!r}: rename the column")
            check_types(self.name, pa.schema([field]), _fixes_for(field.name))
        if KEY in schema.names and not _is_text(schema.field(KEY).type):
            raise PlanError(f"WebDataset: column {KEY!r} is {schema.field(KEY).type}: cast it to pa.string()")

    def write(self, tables: Iterable[pa.Table], stream: BinaryIO, label: str) -> None:
        """Write one file; without a ``__key__`` column, keys are ``<label>/<row number>``."""
        first, last_key = 0, None
        with (
            compressed(stream, self.compression) as inner,
            tarfile.open(fileobj=inner, mode="w|", format=tarfile.PAX_FORMAT) as archive,
        ):
            for table in tables:
                for start in range(0, table.num_rows, _BATCH_ROWS):
                    rows = table.slice(start, _BATCH_ROWS)
                    keys = _keys(rows, label, first + start)
                    _check_distinct_keys([last_key, *keys])
                    _add_rows(archive, rows, keys)
                    last_key = keys[-1]
                first += table.num_rows


def _keys(table: pa.Table, label: str, first: int) -> list[str]:
    if KEY not in table.schema.names:
        return [f"{label}/{row:08d}" for row in range(first, first + table.num_rows)]
    keys: list[Any] = table.column(KEY).to_pylist()
    for key in keys:
        if key is None or not _GOOD_KEY.fullmatch(key):
            raise PlanError(
                f"column {KEY!r} has {key!r}: a key is text, with no dot in what follows its last '/'"
            )
    return keys


def _check_distinct_keys(keys: list[str | None]) -> None:
    """Raise for equal adjacent keys: readers would merge their members into one sample."""
    for before, key in pairwise(keys):
        if before == key:
            raise PlanError(
                f"column {KEY!r} has {key!r} in two rows that follow each other, which readers would merge: "
                f"make keys unique, or exclude the column"
            )


def _add_rows(archive: tarfile.TarFile, table: pa.Table, keys: list[str]) -> None:
    names = [name for name in table.schema.names if name != KEY]
    members = [_encode(name, table.column(name).combine_chunks()) for name in names]
    for row, key in enumerate(keys):
        if all(values[row] is None for values in members):
            raise PlanError(
                f"row {key!r} has nulls only, and a sample needs at least one member: filter such rows out, "
                "or fill their nulls"
            )
        for name, values in zip(names, members, strict=True):
            data = values[row]
            if data is not None:
                info = tarfile.TarInfo(f"{key}.{name}")
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))


def _encode(name: str, array: Any) -> list[bytes | None]:
    """(rows,) a column's members; None for null."""
    ending = _ending(name)
    if ending in _ARRAYS:
        return _arrays(name, array)
    if ending in _JSON:
        array = _where_valid(array, json_texts(array))
    elif pa.types.is_integer(array.type):
        array = array.cast(pa.large_string())
    values: list[bytes | None] = array.cast(pa.large_binary()).to_pylist()
    return values


def _where_valid(array: pa.Array, texts: pa.Array) -> pa.Array:
    import pyarrow.compute as pc

    return pc.if_else(array.is_valid(), texts, None) if array.null_count else texts


def _arrays(name: str, array: pa.Array) -> list[bytes | None]:
    if is_variable_tensor(array.type):
        return [None if row is None else _npy(row) for row in tensor_rows(array, np.asarray)]
    valid = array.is_valid().to_pylist()
    rows = iter(dense_rows(name, array.drop_null()))
    return [_npy(next(rows)) if known else None for known in valid]


def _npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asarray(array, order="C"), allow_pickle=False)
    return file.getvalue()


def _ending(name: str) -> str:
    return name.rpartition(".")[2].lower()


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _fixes_for(name: str) -> Callable[[pa.DataType], str | None]:
    """The function that returns how to fix a type that is not supported under a column's name."""
    ending = _ending(name)
    if ending in _ARRAYS:
        return _array_fix
    if ending in _JSON:
        return json_fix
    return _number_fix if ending in _NUMBERS else _text_fix


def _array_fix(kind: pa.DataType) -> str | None:
    # each member is an array of its own
    return npy_fix(tensor_value_type(kind) if is_variable_tensor(kind) else kind)


def _number_fix(kind: pa.DataType) -> str | None:
    return (
        None if pa.types.is_integer(kind) else "a column of that name must be an integer: rename or cast it"
    )


def _text_fix(kind: pa.DataType) -> str | None:
    types = pa.types
    if _is_text(kind) or types.is_binary(kind) or types.is_large_binary(kind):
        return None
    return (
        "rename it, so that readers can decode it: <name>.npy for numbers and arrays, <name>.json for JSON, "
        "<name>.cls for integers; or cast it to pa.string() or pa.binary()"
    )
