"""WebDataset: tar archives of samples; each sample is a row.

A sample is the adjacent members of an archive that share a key, which is the name up to its first dot.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import pyarrow as pa

from windrow.core.empty_tables import empty_table
from windrow.core.errors import SourceError
from windrow.core.source import CorruptBlockError
from windrow.io.catalog.fragments import FragmentFacts
from windrow.io.catalog.schemas import MergedSchema
from windrow.io.formats.block_files import OpenFile
from windrow.io.formats.row_group_reader import group_by_bytes
from windrow.io.formats.sample_columns import DecodeError, UnsupportedMemberError, decode_column, infer_column
from windrow.io.formats.sampled_format import Head, RecordFormat, estimate_facts
from windrow.io.formats.type_widening import unify_inferred, widen_samples
from windrow.io.formats.user_types import type_names
from windrow.io.storage.error_causes import exceeds_arrow

__all__ = ["KEY_COLUMN", "WebDatasetFormat"]

KEY_COLUMN = "__key__"

_SAMPLES = 100
_BLOCK_BYTES = 512
# key, extension, content, and the offset of its end
_Member = tuple[str, str, pa.Buffer, int]
# the same rule as in the webdataset library
_NAME = re.compile(r"^(?P<key>(?:.*/|)[^./][^./]*)\.(?P<extension>[^/]+)$")


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
        """The options that affect values."""
        return f"compression={self.compression}, decode={self.decode}, dtypes={type_names(self.dtypes)}"

    def unify(self, schemas: Sequence[tuple[str, pa.Schema]]) -> MergedSchema:
        """Unify the inferred types over all archives; an extension can be missing from some."""
        return unify_inferred(schemas, widen_samples, fix="give dtypes=")

    def for_columns(self, schema: pa.Schema, stored: pa.Schema) -> WebDatasetFormat:
        """The format that knows whether all columns are read."""
        return replace(self, complete=all(field in schema for field in stored))

    def tables(self, file: OpenFile, start: int, stop: int, schema: pa.Schema) -> Iterator[pa.Table]:
        """Read samples in batches of some megabytes."""
        members = _iter_members(self.read_content(file))
        key = ""
        try:
            for samples in group_by_bytes(_group_members(members), _count_bytes):
                key = samples[0].key
                yield self._decode(samples, schema)
        except UnsupportedMemberError as error:
            raise SourceError(f"{file.name}: {error}") from error
        except TarError as error:
            raise CorruptBlockError(f"{file.name}: {error}; restore the file, or write it again") from error
        except (DecodeError, pa.ArrowException) as error:
            if exceeds_arrow(error):
                raise
            raise CorruptBlockError(
                f"{file.name}, in the samples from {key!r} on: {error}; repair it, or give dtypes="
            ) from error

    def describe(self, file: OpenFile, head: Head) -> FragmentFacts:
        """Infer the columns from the first samples."""
        members = _iter_members(head.data, whole=head.whole)
        try:
            samples = list(islice(_group_members(members, whole=head.whole), _SAMPLES))
            table = self._sample(samples)
        except UnsupportedMemberError as error:
            raise SourceError(f"{file.name}: {error}") from error
        except (TarError, DecodeError, pa.ArrowException) as error:
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
            types[extension] = given.get(extension) or infer_column(extension, contents, self.decode)
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
        return decode_column(field.name, contents, field.type, self.decode, requested=requested)


def _check_extensions(samples: Sequence[_Sample], names: set[str]) -> None:
    for sample in samples:
        for extension in sample.members:
            if extension not in names:
                raise UnsupportedMemberError(
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
                    raise UnsupportedMemberError(
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
