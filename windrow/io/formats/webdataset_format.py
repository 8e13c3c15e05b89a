"""WebDataset: tar archives of samples; each sample is a row.

A sample is the adjacent members of an archive that share a key, which is the name up to its first dot.
"""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from windrow.core.arrow_support import empty_table
from windrow.core.errors import SourceError
from windrow.core.optional_dependencies import require
from windrow.core.source import CorruptBlockError
from windrow.core.text_types import offset_width
from windrow.core.variable_tensors import is_variable_tensor, to_tensor_column, variable_tensor
from windrow.io.catalog.manifest import FragmentFacts
from windrow.io.catalog.schemas import MergedSchema
from windrow.io.formats.block_files import OpenFile
from windrow.io.formats.image_pixels import describe_limit, is_too_large
from windrow.io.formats.inferred_types import type_names, unify_inferred, widen_samples
from windrow.io.formats.row_group_format import Head, RecordFormat, estimate_facts, group_by_bytes
from windrow.io.storage.error_causes import exceeds_arrow

_IMAGES = ("bmp", "gif", "jpeg", "jpg", "png", "ppm", "tif", "tiff", "webp")
_TEXTS = ("text", "transcript", "txt")
_INTEGERS = ("cls", "cls2", "id", "index", "inx")
_JSON = ("json", "jsn")
_ARRAYS = ("npy",)

Contents = Sequence["pa.Buffer | None"]
KEY_COLUMN = "__key__"
_SAMPLES = 100
_BLOCK_BYTES = 512
# key, extension, content, and the offset of its end
_Member = tuple[str, str, pa.Buffer, int]
# the same rule as in the webdataset library
_NAME = re.compile(r"^(?P<key>(?:.*/|)[^./][^./]*)\.(?P<extension>[^/]+)$")


class _DecodeError(ValueError):
    """A member does not match its extension or its column's type."""


class _UnsupportedMemberError(_DecodeError):
    """A member is intact, but too large, of a kind that is not supported, or of no column."""


def _infer_column(extension: str, contents: Contents, mode: str | None) -> pa.DataType:
    """Infer the column type of an extension from the members of some samples."""
    kind = extension.rpartition(".")[2]
    if kind in _TEXTS:
        return pa.string()
    if kind in _INTEGERS:
        return pa.int64()
    if kind in _JSON:
        return _from_objects(extension, _decode_all(_json, extension, contents), None).type
    decode = _array_decoder(kind, mode)
    if decode is None:
        return pa.binary()
    arrays = _decode_all(decode, extension, contents)
    return _array_type(extension, [array for array in arrays if array is not None])


def _decode_column(
    extension: str, contents: Contents, column_type: pa.DataType, mode: str | None, *, requested: bool
) -> pa.Array:
    """Decode the members of one extension to a column; None becomes null.

    ``requested`` means that the user requested the type: text and binary types then keep the raw member.
    """
    kind = extension.rpartition(".")[2]
    decode = _array_decoder(kind, mode)
    as_stored = offset_width(column_type) > 0 and (requested or kind not in _JSON)
    if as_stored or (decode is None and kind not in (*_TEXTS, *_INTEGERS, *_JSON)):
        stored = [None if raw is None else raw.to_pybytes() for raw in contents]
        return pa.array(stored, pa.binary()).cast(column_type)
    if decode is not None:
        return _from_arrays(extension, _decode_all(decode, extension, contents), column_type)
    if kind in _JSON:
        return _from_objects(extension, _decode_all(_json, extension, contents), column_type)
    return pa.array(_decode_all(_integer, extension, contents), column_type)


def _array_decoder(kind: str, mode: str | None) -> Callable[[Any], Any] | None:
    if kind in _ARRAYS:
        return _npy
    if mode is None or kind not in _IMAGES:
        return None
    pillow = require("PIL.Image", "images", "decode=")

    def decode(raw: Any) -> Any:
        try:
            return np.asarray(pillow.open(io.BytesIO(raw)).convert(mode))
        except Exception as error:
            if is_too_large(pillow, error):
                raise _UnsupportedMemberError(f"an image {describe_limit(pillow, error)}") from error
            raise

    return decode


def _decode_all(decode: Callable[[Any], Any], extension: str, contents: Contents) -> list[Any]:
    try:
        return [None if raw is None else decode(raw) for raw in contents]
    except (_UnsupportedMemberError, MemoryError):
        raise
    except Exception as error:  # Pillow, NumPy and json raise many types
        raise _DecodeError(f"a member {extension!r} cannot be decoded: {error}") from error


def _json(raw: pa.Buffer) -> Any:
    return json.loads(bytes(raw))


def _integer(raw: pa.Buffer) -> int:
    return int(bytes(raw))


def _npy(raw: pa.Buffer) -> Any:
    array = np.load(io.BytesIO(raw), allow_pickle=False)
    return np.asarray(array, array.dtype.newbyteorder("="), order="C")


def _array_type(extension: str, arrays: Sequence[Any]) -> pa.DataType:
    value = pa.from_numpy_dtype(np.result_type(*{array.dtype for array in arrays}))
    shapes = {array.shape for array in arrays}
    if shapes == {()}:
        return value
    if len(shapes) == 1:
        return pa.fixed_shape_tensor(value, shapes.pop())
    if {len(shape) for shape in shapes} == {1}:
        return pa.list_(value)
    if len(dims := {len(shape) for shape in shapes}) == 1:
        return variable_tensor(value, dims.pop())
    raise _DecodeError(
        f"members {extension!r} have shapes {sorted(shapes)[0]} and {sorted(shapes)[-1]}, which no column type "
        f"can hold: keep their bytes with dtypes={{{extension!r}: pa.binary()}}"
    )


def _from_arrays(extension: str, arrays: Sequence[Any], column_type: pa.DataType) -> pa.Array:
    if is_variable_tensor(column_type):
        return to_tensor_column(arrays, column_type)
    if not isinstance(column_type, pa.FixedShapeTensorType):
        values = [None if array is None else array.tolist() for array in arrays]
        return pa.array(values, column_type)
    shape, value = tuple(column_type.shape), column_type.value_type
    for array in arrays:
        if array is not None and array.shape != shape:
            raise _DecodeError(
                f"a member {extension!r} has the shape {array.shape}, but the column has {shape}: give "
                f"dtypes={{{extension!r}: windrow.VariableShapeTensorType(pa.{_type_name(value)}(), {len(shape)})}}"
            )
    present = [array.ravel() for array in arrays if array is not None]
    flat = pa.array(np.concatenate(present) if present else np.zeros(0)).cast(value)
    stored = pa.FixedSizeListArray.from_arrays(flat, type=column_type.storage_type)
    if len(present) < len(arrays):
        here = np.array([array is not None for array in arrays])
        stored = stored.take(pa.array(np.cumsum(here) - 1, mask=~here))
    return pa.ExtensionArray.from_storage(column_type, stored)


def _type_name(value: pa.DataType) -> str:
    """The function of pyarrow that makes a type of numbers."""
    name = np.dtype(value.to_pandas_dtype()).name
    return "bool_" if name == "bool" else name


def _from_objects(extension: str, values: Sequence[Any], column_type: pa.DataType | None) -> pa.Array:
    try:
        array = pa.array(values, column_type)
    except pa.ArrowException as error:
        raise _DecodeError(
            f"members {extension!r} do not fit one type: {error}; keep their text with "
            f"dtypes={{{extension!r}: pa.string()}}"
        ) from error
    if column_type is not None:
        for value in values:
            _check_keys(extension, value, column_type)
    return array


def _check_keys(extension: str, value: Any, kind: pa.DataType) -> None:
    """Reject keys that the struct type lacks: Arrow would drop them silently."""
    if pt.is_struct(kind) and isinstance(value, dict):
        fields = {kind.field(at).name: kind.field(at).type for at in range(kind.num_fields)}
        for key, inner in value.items():
            if key not in fields:
                raise _DecodeError(
                    f"a member {extension!r} has the key {key!r}, which is missing from every archive's first "
                    f"samples: give dtypes=, or keep the text with dtypes={{{extension!r}: pa.string()}}"
                )
            _check_keys(extension, inner, fields[key])
    elif (pt.is_list(kind) or pt.is_large_list(kind)) and isinstance(value, list):
        for inner in value:
            _check_keys(extension, inner, kind.value_type)


class TarError(ValueError):
    """The data is not a tar archive, is truncated, or its members do not form samples."""


@dataclass(frozen=True)
class _Sample:
    """The members that share a key, by extension, and the offset of the last one's end."""

    key: str
    members: dict[str, pa.Buffer]
    end: int


@dataclass(frozen=True)
class WebDatasetFormat(RecordFormat):
    """Archives of samples; each archive is a row group.

    ``decode`` is the Pillow mode to which images are decoded; None keeps their bytes. ``dtypes`` are the
    user's types by extension. ``complete`` states that all columns are read, so that an unknown extension
    is an error.
    """

    compression: str | None
    decode: str | None = None
    dtypes: Mapping[str, pa.DataType] | None = None
    complete: bool = False
    name: str = "WebDataset"

    @property
    def options(self) -> str:
        return f"compression={self.compression}, decode={self.decode}, dtypes={type_names(self.dtypes)}"

    def unify(self, schemas: Sequence[tuple[str, pa.Schema]]) -> MergedSchema:
        return unify_inferred(schemas, widen_samples, fix="give dtypes=")

    def for_columns(self, schema: pa.Schema, stored: pa.Schema) -> WebDatasetFormat:
        return replace(self, complete=all(field in schema for field in stored))

    def tables(self, file: OpenFile, start: int, stop: int, schema: pa.Schema) -> Iterator[pa.Table]:
        members = _iter_members(self.read_content(file))
        key = ""
        try:
            for samples in group_by_bytes(_group_members(members), _count_bytes):
                key = samples[0].key
                yield self._decode(samples, schema)
        except _UnsupportedMemberError as error:
            raise SourceError(f"{file.name}: {error}") from error
        except TarError as error:
            raise CorruptBlockError(f"{file.name}: {error}; restore the file, or write it again") from error
        except (_DecodeError, pa.ArrowException) as error:
            if exceeds_arrow(error):
                raise
            raise CorruptBlockError(
                f"{file.name}, in the samples from {key!r} on: {error}; repair it, or give dtypes="
            ) from error

    def describe(self, file: OpenFile, head: Head) -> FragmentFacts:
        members = _iter_members(head.data, whole=head.whole)
        try:
            samples = list(islice(_group_members(members, whole=head.whole), _SAMPLES))
            table = self._sample(samples)
        except _UnsupportedMemberError as error:
            raise SourceError(f"{file.name}: {error}") from error
        except (TarError, _DecodeError, pa.ArrowException) as error:
            raise SourceError(
                f"{file.name} is not an archive of samples as described: {error}; check compression=, "
                f"dtypes= and decode="
            ) from error
        return estimate_facts(table, samples[-1].end if samples else 0, [head.content_bytes])

    def _sample(self, samples: Sequence[_Sample]) -> pa.Table:
        given = self.dtypes or {}
        types = {KEY_COLUMN: pa.string()} if samples or given else {}
        for extension in dict.fromkeys([*(name for sample in samples for name in sample.members), *given]):
            contents = [sample.members.get(extension) for sample in samples]
            types[extension] = given.get(extension) or _infer_column(extension, contents, self.decode)
        schema = pa.schema(list(types.items()))
        return replace(self, complete=False)._decode(samples, schema) if samples else empty_table(schema)

    def _decode(self, samples: Sequence[_Sample], schema: pa.Schema) -> pa.Table:
        if self.complete:
            _check_extensions(samples, set(schema.names))
        arrays = [self._column(samples, field) for field in schema]
        if not arrays:
            return pa.table({KEY_COLUMN: [sample.key for sample in samples]})
        return pa.table(arrays, schema=schema)

    def _column(self, samples: Sequence[_Sample], field: pa.Field) -> pa.Array:
        if field.name == KEY_COLUMN:
            return pa.array([sample.key for sample in samples], pa.string())
        contents = [sample.members.get(field.name) for sample in samples]
        requested = field.name in (self.dtypes or {})
        return _decode_column(field.name, contents, field.type, self.decode, requested=requested)


def _check_extensions(samples: Sequence[_Sample], names: set[str]) -> None:
    for sample in samples:
        for extension in sample.members:
            if extension not in names:
                raise _UnsupportedMemberError(
                    f"sample {sample.key!r} has a member {extension!r}, which is missing from every archive's first "
                    f"samples: give its type with dtypes=, or exclude it with columns="
                )


def _count_bytes(sample: _Sample) -> int:
    return sum(content.size for content in sample.members.values())


def _iter_members(data: pa.Buffer, *, whole: bool = True) -> Iterator[_Member]:
    """Iterate over the members of samples; unless ``whole``, ``data`` is a head, and iteration stops where it ends.

    Skips directories, links, names without an extension, and names that begin and end with ``__``. Finds
    corruption as far as tar can detect it: headers have checksums, contents do not.
    """
    try:
        with tarfile.open(fileobj=pa.BufferReader(data), mode="r:") as archive:
            for info in archive:
                if info.issparse():
                    raise _UnsupportedMemberError(
                        f"{info.name!r} is a sparse member, which is not supported: write the archive without -S"
                    )
                end = info.offset_data + info.size
                if end > data.size:
                    raise TarError(f"{info.name!r} is truncated")
                named = _NAME.match(info.name)
                if info.isreg() and named and not (info.name.startswith("__") and info.name.endswith("__")):
                    content = data.slice(info.offset_data, info.size)
                    yield named["key"], named["extension"].lower(), content, end
            stopped = archive.offset
    except (OSError, EOFError, tarfile.TarError, TarError) as error:
        if whole:
            raise TarError(str(error)) from error
        return
    if whole:
        _check_end(np.frombuffer(data, np.uint8)[stopped:], stopped)


def _check_end(rest: np.ndarray, at: int) -> None:
    """Require zero blocks at the end of an archive; Python's reader silently stops at anything else as well."""
    if len(rest) < _BLOCK_BYTES or rest[:_BLOCK_BYTES].any():
        raise TarError(f"from byte {at:,} on it is truncated or corrupt")
    if rest.any():
        raise TarError(f"it goes on after its end at byte {at:,}: write several archives as several files")


def _group_members(members: Iterable[_Member], *, whole: bool = True) -> Iterator[_Sample]:
    """Group adjacent members of one key to samples; unless ``whole``, drops the last, which can be incomplete."""
    sample: _Sample | None = None
    for key, extension, content, end in members:
        if sample is not None and sample.key != key:
            yield sample
            sample = None
        known = {} if sample is None else sample.members
        if extension in known:
            raise TarError(f"sample {key!r} has two members {extension!r}")
        sample = _Sample(key, {**known, extension: content}, end)
    if sample is not None and whole:
        yield sample
