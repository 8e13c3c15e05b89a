"""The contents of the rows of a column of compressed media: bytes, structs of bytes and path, or paths."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from windrow.core.variable_tensors import is_variable_tensor
from windrow.io.storage.path_contents import Load, PathReader
from windrow.pipeline.tasks.document_columns import is_text

_BYTES, _PATH = "bytes", "path"


class Content(NamedTuple):
    """What a row holds: the function that loads its bytes, None for null, and its path for messages, if it has one."""

    load: Load | None
    path: str | None


def describe_wrong_type(kind: pa.DataType) -> str | None:
    """Why a column of a type cannot hold compressed media; None if it can."""
    plain = _plain_type(kind)
    if _is_bytes(plain) or is_text(plain):
        return None
    names = [field.name for field in plain] if pa.types.is_struct(plain) else []
    if _BYTES in names and _is_bytes(plain.field(_BYTES).type):
        return None
    fix = "give a column of bytes, of structs of bytes and path, or of paths"
    if isinstance(kind, pa.FixedShapeTensorType) or is_variable_tensor(kind):
        fix += ". This one is decoded already, as read_images does; read_binary_files reads bytes"
    return f"is of type {kind}: {fix}"


def read_contents(column: pa.ChunkedArray, paths: PathReader) -> Iterator[Content]:
    """The content of each row; raises a TypeError for a column of another type."""
    wrong = describe_wrong_type(column.type)
    if wrong is not None:
        raise TypeError(wrong)
    for chunk in column.chunks:
        yield from _chunk_contents(_plain_array(chunk), paths)


def _chunk_contents(chunk: pa.Array, paths: PathReader) -> Iterator[Content]:
    if _is_bytes(chunk.type):
        yield from (Content(load, None) for load in _loads_of_bytes(chunk))
    elif is_text(chunk.type):
        names = chunk.to_pylist()
        yield from map(Content, paths.loads(names), names)
    else:
        yield from _struct_contents(chunk, paths)


def _struct_contents(chunk: pa.Array, paths: PathReader) -> Iterator[Content]:
    # flatten() gives null fields to null structs
    fields = dict(zip((field.name for field in chunk.type), chunk.flatten(), strict=True))
    loads = list(_loads_of_bytes(_plain_array(fields[_BYTES])))
    has_paths = _PATH in fields and is_text(_plain_type(fields[_PATH].type))
    names = _plain_array(fields[_PATH]).to_pylist() if has_paths else [None] * len(chunk)
    # paths count where there are no bytes
    read = paths.loads([None if load else name for load, name in zip(loads, names, strict=True)])
    for load, name, from_path in zip(loads, names, read, strict=True):
        yield Content(load or from_path, name)


def _loads_of_bytes(chunk: pa.Array) -> Iterator[Load | None]:
    binary = chunk.cast(pa.large_binary())
    if not len(binary):
        return
    _, offsets, data = binary.buffers()
    view = memoryview(b"" if data is None else data)
    bounds = np.frombuffer(offsets, np.int64, len(binary) + 1, 8 * binary.offset).tolist()
    valid = binary.is_valid().to_pylist() if binary.null_count else [True] * len(binary)
    for row, is_valid in enumerate(valid):
        yield partial(view.__getitem__, slice(bounds[row], bounds[row + 1])) if is_valid else None


def _is_bytes(kind: pa.DataType) -> bool:
    checks = (
        pa.types.is_binary,
        pa.types.is_large_binary,
        pa.types.is_binary_view,
        pa.types.is_fixed_size_binary,
    )
    return any(check(kind) for check in checks)


def _plain_type(kind: Any) -> pa.DataType:
    """The type of the values, without dictionary encoding and extension."""
    while True:
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        elif isinstance(kind, pa.BaseExtensionType):
            kind = kind.storage_type
        else:
            return kind


def _plain_array(array: Any) -> pa.Array:
    while True:
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        elif isinstance(array.type, pa.BaseExtensionType):
            array = array.storage
        else:
            return array
