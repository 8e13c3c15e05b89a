"""MosaicML's MDS: the shards that an index.json names, read as they are; row groups are ranges of samples.

A shard holds the number of samples, their offsets, the columns as JSON, and the samples. A sample is the sizes of the
columns that state none, and the values. Compressed shards are read as a whole.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.errors import SourceError
from windrow.io.catalog.manifest import FragmentFacts, estimate_variable
from windrow.io.catalog.schemas import MergedSchema
from windrow.io.formats.block_files import OpenFile, open_path
from windrow.io.formats.file_encodings import decompress, decompress_snappy
from windrow.io.formats.mds_encodings import (
    MdsValueError,
    decode_column,
    find_unreadable,
    infer_type,
    measure_column,
)
from windrow.io.formats.row_group_format import PART_BYTES, RowGroupFormat, corruption_is_invalid
from windrow.io.formats.unreadable_columns import merge_readable, unreadable_field
from windrow.io.storage.file_versions import Version
from windrow.io.storage.filesystems import Files
from windrow.io.storage.footer_cache import FooterCache

INDEX_NAME = "index.json"
# samples whose mean width estimates those of all
_SAMPLES = 100
_NUMBER_BYTES = 4
# prefetched at the beginning of a remote shard, for its offsets and columns
_HEAD_BYTES = 64 * 1024
_SUFFIXES: Mapping[str, Callable[[pa.Buffer], pa.Buffer]] = {
    ".br": lambda data: decompress("brotli", data),
    ".bz2": lambda data: decompress("bz2", data),
    ".gz": lambda data: decompress("gzip", data),
    ".snappy": decompress_snappy,
    ".zstd": lambda data: decompress("zstd", data),
}
_LAYOUTS = FooterCache(max_footers=64, max_bytes=64 * 2**20)

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class _Column:
    """A column of a shard; ``size`` are the bytes of each value, None where samples state them."""

    name: str
    encoding: str
    size: int | None


@dataclass(frozen=True, eq=False)
class _Layout:
    """The columns of a shard, and (samples + 1,) where each sample begins, and the last one ends."""

    columns: tuple[_Column, ...]
    offsets: Ints

    @property
    def samples(self) -> int:
        return len(self.offsets) - 1

    @property
    def serialized_size(self) -> int:
        return self.offsets.nbytes


@dataclass(frozen=True)
class MdsFormat(RowGroupFormat):
    """Shards of samples, which an index names."""

    joins_files = True
    corruption = (ValueError, LookupError)

    name: str = "MDS"
    options: str = ""

    def unify(self, schemas: Sequence[tuple[str, pa.Schema]]) -> MergedSchema:
        return merge_readable(schemas)

    def read_index(self, files: Files, versions: Mapping[str, Version]) -> Mapping[str, FragmentFacts]:
        """The facts of all shards that the indices among the listed files name, by path; see `IndexedFormat`."""
        facts: dict[str, FragmentFacts] = {}
        for index in _find_indices(files, list(versions)):
            try:
                stated = _parse_index(_read_whole(files, index, versions[index].size_bytes))
                for path, found in _describe_shards(files, index, stated, versions):
                    if path in facts:
                        raise ValueError(f"it names {path} twice")
                    facts[path] = found
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                why = str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"
                raise SourceError(
                    f"{files.name(index)} is not an index of MDS shards ({why}): restore it, or write the data again"
                ) from error
        if not facts:
            raise SourceError(
                f"{files.url} has an {INDEX_NAME} that names no shards: leave the directory out"
            )
        return facts

    def tables(self, file: OpenFile, start: int, stop: int, schema: pa.Schema) -> Iterator[pa.Table]:
        with corruption_is_invalid(self.corruption):
            shard = _unpack(file)
            if shard is file:
                layout = file.remembered(_LAYOUTS, _parse_layout)
                cuts = _cut_samples(layout.samples, file.size_bytes)[start:stop]
                file.fetch([(int(layout.offsets[first]), int(layout.offsets[last])) for first, last in cuts])
            else:
                layout = _parse_layout(shard)
                cuts = _cut_samples(layout.samples, shard.size_bytes)
            for first, last in cuts:
                yield _decode(shard, layout, first, last, schema)


def _find_indices(files: Files, paths: Sequence[str]) -> list[str]:
    """The outermost indices: one that names the shards of subfolders stands beside their own."""
    found = [path for path in paths if posixpath.basename(path) == INDEX_NAME]
    folders = {posixpath.dirname(path) for path in found}
    outermost = [path for path in found if not folders & set(_folders_above(posixpath.dirname(path)))]
    if not outermost:
        raise SourceError(
            f"{files.url} has no {INDEX_NAME}, which names the shards of MDS: give the directory that MDSWriter wrote"
        )
    return outermost


def _folders_above(folder: str) -> Iterator[str]:
    while folder:
        folder = posixpath.dirname(folder)
        yield folder


def _read_whole(files: Files, path: str, size: int) -> pa.Buffer:
    with files.mapped_errors(files.name(path)), open_path(files, path, size, mapped=False) as file:
        return file.read_range(0, size)


def _parse_index(content: pa.Buffer) -> list[dict[str, Any]]:
    index = json.loads(bytes(content))
    shards: list[dict[str, Any]] = index["shards"]
    for version in (index["version"], *(shard["version"] for shard in shards)):
        if version != 2:
            raise ValueError(f"it is of version {version}, and version 2 is supported")
    for shard in shards:
        if shard["format"] != "mds":
            raise ValueError(f"it names shards of the format {shard['format']!r}, and 'mds' is supported")
    return shards


def _describe_shards(
    files: Files, index: str, shards: Sequence[Mapping[str, Any]], versions: Mapping[str, Version]
) -> Iterator[tuple[str, FragmentFacts]]:
    """The facts of the shards of one index; samples of the first shard tell the sizes of columns."""
    samples: dict[tuple[_Column, ...], tuple[pa.Schema, Mapping[str, float]]] = {}
    for shard in shards:
        raw, count = shard["raw_data"], int(shard["samples"])
        stored = [part for part in (raw, shard["zip_data"]) if part]
        names = [posixpath.join(posixpath.dirname(index), part["basename"]) for part in stored]
        place = next((place for place, name in enumerate(names) if name in versions), None)
        if place is None:
            raise SourceError(
                f"{files.name(names[-1])} is missing, and {files.name(index)} names it: restore the file, or write the "
                "data again"
            )
        path, size = names[place], int(stored[place]["bytes"])
        if versions[path].size_bytes != size:
            raise SourceError(
                f"{files.name(path)} has {versions[path].size_bytes:,} bytes, and {files.name(index)} states "
                f"{size:,}: it is truncated or was replaced; restore it, or write the data again"
            )
        columns = _read_columns(shard)
        if columns not in samples and count:
            samples[columns] = _sample(files, path, size, columns, count)
        schema, means = samples.get(columns) or (pa.schema(map(_infer_field, columns)), {})
        yield path, _state_facts(schema, means, count, int(raw["bytes"]), whole=place > 0)


def _read_columns(stated: Mapping[str, Any]) -> tuple[_Column, ...]:
    names, encodings, sizes = (stated[f"column_{part}"] for part in ("names", "encodings", "sizes"))
    return tuple(
        _Column(name, encoding, size or None)
        for name, encoding, size in zip(names, encodings, sizes, strict=True)
    )


def _sample(
    files: Files, path: str, size: int, columns: Sequence[_Column], samples: int
) -> tuple[pa.Schema, dict[str, float]]:
    """The columns of a shard by its first samples, and the mean bytes of their values for each byte of a sample."""
    name = files.name(path)
    with files.mapped_errors(name), open_path(files, path, size) as file:
        try:
            shard = _unpack(file)
            layout = _parse_layout(shard)
            if layout.samples != samples or layout.columns != columns:
                raise ValueError(f"holds other samples or columns than its {INDEX_NAME} states")
            bounds = layout.offsets[: _SAMPLES + 1] - layout.offsets[0]
            last = max(int(np.searchsorted(bounds, PART_BYTES, side="right")) - 1, 1)
            cells = _read_cells(shard, layout, 0, last, columns)
            measured = [_measure(column, values) for column, values in zip(columns, cells, strict=True)]
        except (ValueError, LookupError, OSError) as error:
            if file.failed:
                raise
            why = str(error) if type(error) is ValueError else f"is truncated or corrupt ({error})"
            raise SourceError(f"{name} {why}; restore it, write it again, or exclude it") from error
    means = {field.name: count / max(int(bounds[last]), 1) for field, count in measured}
    return pa.schema([field for field, _ in measured]), means


def _measure(column: _Column, values: pa.Array) -> tuple[pa.Field[Any], int]:
    """The field of a column by some of its values, and their bytes in memory."""
    unreadable = find_unreadable(column.encoding)
    if unreadable is None:
        try:
            kind, count = measure_column(column.encoding, values)
            return pa.field(column.name, kind), count
        except MdsValueError as error:
            unreadable = "several", str(error)
    return unreadable_field(column.name, *unreadable), 1


def _infer_field(column: _Column) -> pa.Field[Any]:
    """The field of a column without values."""
    unreadable = find_unreadable(column.encoding)
    if unreadable is not None:
        return unreadable_field(column.name, *unreadable)
    return pa.field(column.name, infer_type(column.encoding))


def _state_facts(
    schema: pa.Schema, means: Mapping[str, float], samples: int, raw_bytes: int, *, whole: bool
) -> FragmentFacts:
    cuts = _cut_samples(samples, raw_bytes)
    if whole and cuts:
        cuts = [(0, samples)]
    rows = [last - first for first, last in cuts]
    encoded = [raw_bytes * count // samples for count in rows]
    variable = estimate_variable(schema, encoded, means)
    return FragmentFacts(schema, rows, encoded, variable, dict.fromkeys(schema.names, 0))


def _cut_samples(samples: int, raw_bytes: int) -> list[tuple[int, int]]:
    """Split the samples of a shard into ranges of some MiB, by their mean size."""
    step = max(1, PART_BYTES * samples // max(raw_bytes, 1))
    return [(first, min(first + step, samples)) for first in range(0, samples, step)]


def _unpack(file: OpenFile) -> OpenFile:
    """The shard in a file: the file itself, or its content in memory if its name tells that it is compressed."""
    unpack = _SUFFIXES.get(posixpath.splitext(file.name)[1])
    if unpack is None:
        return file
    file.fetch([(0, file.size_bytes)])
    data = unpack(file.read_range(0, file.size_bytes))
    return OpenFile(file.name, None, data.size, pa.BufferReader(data), None)


def _parse_layout(shard: OpenFile) -> _Layout:
    """Read what precedes the samples of a shard; a ValueError if it contradicts itself."""
    size_bytes = shard.size_bytes
    if size_bytes < 2 * _NUMBER_BYTES:
        raise ValueError(
            f"is truncated: a shard has at least {2 * _NUMBER_BYTES} bytes, and it has {size_bytes}"
        )
    shard.fetch([(0, min(_HEAD_BYTES, size_bytes))])
    samples = int.from_bytes(shard.read_range(0, _NUMBER_BYTES), "little")
    begin = (samples + 2) * _NUMBER_BYTES
    if begin > size_bytes:
        raise ValueError(f"is truncated or corrupt: the offsets of {samples:,} samples do not fit into it")
    offsets = np.frombuffer(shard.read_range(_NUMBER_BYTES, begin), "<u4").astype(np.int64)
    if offsets[0] < begin or offsets[-1] != size_bytes or (np.diff(offsets) < 0).any():
        raise ValueError("is truncated or corrupt: the offsets of its samples do not ascend to its end")
    try:
        columns = _read_columns(json.loads(bytes(shard.read_range(begin, int(offsets[0])))))
    except (ValueError, LookupError, TypeError) as error:
        raise ValueError(f"is corrupt: the text before its samples states no columns ({error})") from error
    return _Layout(columns, offsets)


def _decode(shard: OpenFile, layout: _Layout, first: int, last: int, schema: pa.Schema) -> pa.Table:
    """Decode some columns of samples, as far as the shard has them."""
    wanted = [column for column in layout.columns if column.name in schema.names]
    if not wanted:
        return pa.table({"": pa.nulls(last - first)})
    arrays = []
    for column, values in zip(wanted, _read_cells(shard, layout, first, last, wanted), strict=True):
        try:
            arrays.append(decode_column(column.encoding, values, schema.field(column.name).type))
        except MdsValueError as error:
            raise SourceError(
                f"{shard.name}, in samples {first:,} to {last - 1:,}: column {column.name!r} is {error}: {error.fix}"
            ) from error
    return pa.table(arrays, names=[column.name for column in wanted])


def _read_cells(
    shard: OpenFile, layout: _Layout, first: int, last: int, wanted: Sequence[_Column]
) -> list[pa.Array]:
    """The bytes of the values of some columns; a ValueError if a sample contradicts itself."""
    bounds = layout.offsets[first : last + 1] - layout.offsets[first]
    data = shard.read_range(int(layout.offsets[first]), int(layout.offsets[last]))
    starts, ends = _locate(data, bounds, layout.columns, first)
    places = [layout.columns.index(column) for column in wanted]
    return [_gather(data, starts[:, place], ends[:, place]) for place in places]


def _locate(data: pa.Buffer, bounds: Ints, columns: Sequence[_Column], first: int) -> tuple[Ints, Ints]:
    """(samples, columns) where each value begins and ends in the data of samples, which begin at ``bounds``."""
    variable = [place for place, column in enumerate(columns) if column.size is None]
    head = _NUMBER_BYTES * len(variable)
    sizes = np.empty((len(bounds) - 1, len(columns)), np.int64)
    fits = bounds[:-1] + head <= bounds[1:]
    if fits.all():
        places = bounds[:-1, None] + np.arange(head)
        stated = np.ascontiguousarray(np.frombuffer(data, np.uint8)[places]).view("<u4")
        for place, column in enumerate(columns):
            sizes[:, place] = stated[:, variable.index(place)] if column.size is None else column.size
        ends = bounds[:-1, None] + head + np.cumsum(sizes, axis=1)
        fits = ends[:, -1] == bounds[1:]
    if not fits.all():
        sample = first + int(np.argmin(fits))
        raise ValueError(f"is corrupt: the values of sample {sample:,} do not fill it")
    return ends - sizes, ends


def _gather(data: pa.Buffer, starts: Ints, ends: Ints) -> pa.Array:
    """(samples,) the values of a column: every second one of an array of these and of what lies between them."""
    offsets = np.zeros(2 * len(starts) + 1, np.int64)
    offsets[1::2], offsets[2::2] = starts, ends
    every = pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), data])
    return every.take(pa.array(np.arange(1, len(offsets), 2))).cast(pa.binary())
