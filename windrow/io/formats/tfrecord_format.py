"""TFRecord files of ``tf.train.Example``, read without TensorFlow: records, their checksums and columns."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import pyarrow as pa

from windrow.core.errors import SourceError
from windrow.core.optional_dependencies import require
from windrow.core.source import CorruptBlockError
from windrow.io.catalog.manifest import FragmentFacts
from windrow.io.catalog.schemas import MergedSchema
from windrow.io.formats.block_files import OpenFile
from windrow.io.formats.inferred_types import type_names, unify_inferred, widen_features
from windrow.io.formats.row_group_format import Head, RecordFormat, estimate_facts, group_by_bytes
from windrow.io.formats.tfrecord_features import (
    FeatureError,
    gather_features,
    infer_type,
    list_kind,
    to_array,
)
from windrow.io.storage.error_causes import exceeds_arrow

_SAMPLE_RECORDS = 1000
_HEADER = struct.Struct("<QI")
_FOOTER = struct.Struct("<I")


class FrameError(ValueError):
    """A frame is truncated or corrupt, or the data is not TFRecord."""


@dataclass(frozen=True)
class TFRecordFormat(RecordFormat):
    """Files of examples; each file is a row group.

    ``features`` are the user's types by feature. ``complete`` states that all features are read, so that
    an unknown one is an error.
    """

    compression: str | None
    features: Mapping[str, pa.DataType] | None = None
    complete: bool = False
    name: str = "TFRecord"

    @property
    def options(self) -> str:
        return f"compression={self.compression}, features={type_names(self.features)}"

    def unify(self, schemas: Sequence[tuple[str, pa.Schema]]) -> MergedSchema:
        return unify_inferred(schemas, widen_features, fix="give features=")

    def for_columns(self, schema: pa.Schema, stored: pa.Schema) -> TFRecordFormat:
        return replace(self, complete=self.features is None and set(stored.names) <= set(schema.names))

    def tables(self, file: OpenFile, start: int, stop: int, schema: pa.Schema) -> Iterator[pa.Table]:
        content = self.read_content(file)
        first = 0
        try:
            for records in group_by_bytes(iter_records(content), len):
                yield self._decode(records, schema)
                first += len(records)
        except FrameError as error:
            raise CorruptBlockError(f"{file.name}: {error}; restore the file, or write it again") from error
        except (FeatureError, pa.ArrowException) as error:
            if exceeds_arrow(error):
                raise
            where = f"{file.name}, in the records from {first} on"
            raise CorruptBlockError(f"{where}: {error}; check whether it holds tf.train.Example") from error

    def describe(self, file: OpenFile, head: Head) -> FragmentFacts:
        try:
            records = list(islice(iter_records(head.data, whole=head.whole), _SAMPLE_RECORDS))
            sample = self._sample(records)
        except (FrameError, FeatureError, pa.ArrowException) as error:
            raise SourceError(
                f"{file.name} is not a TFRecord file of examples as described: {error}; check compression= and "
                f"features="
            ) from error
        size = sum(map(len, records)) + (_HEADER.size + _FOOTER.size) * len(records)
        return estimate_facts(sample, size, [head.content_bytes])

    def _sample(self, records: Sequence[bytes]) -> pa.Table:
        given = dict(self.features or {})
        found = gather_features(records, None, complete=False)
        names = list(given) if given else sorted(found)
        kinds = {name: given[name] if name in given else infer_type(found[name]) for name in names}
        schema = pa.schema(list(kinds.items()))
        return replace(self, complete=False)._decode(records, schema) if names else pa.table({})

    def _decode(self, records: Sequence[bytes], schema: pa.Schema) -> pa.Table:
        kinds = {field.name: list_kind(field.type) or "" for field in schema}
        found = gather_features(records, kinds, complete=self.complete)
        if not found:
            return pa.table({"": pa.nulls(len(records))})
        return pa.table([to_array(found[field.name], field.type) for field in schema], schema=schema)


def load_checksum() -> Any:
    """Import the function that computes the CRC-32C of bytes; a PlanError if its library is not installed."""
    return require("google_crc32c", "tfrecords", "TFRecord").value


def mask(checksum: int) -> int:
    """Mask a checksum as TFRecord does, so that a checksum of data that contains checksums stays meaningful."""
    return (((checksum >> 15) | (checksum << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def iter_records(data: pa.Buffer, *, whole: bool = True) -> Iterator[bytes]:
    """Iterate over verified records; unless ``whole``, ``data`` is a head, and iteration stops where it ends.

    A record is framed by its length, the length's checksum, and its own checksum.
    """
    checksum = load_checksum()
    view, at, number = memoryview(data), 0, 0
    while at < len(view):
        if at + _HEADER.size > len(view):
            if whole:
                raise FrameError(f"record {number}, from byte {at:,} on, is truncated")
            return
        length, expected = _HEADER.unpack_from(view, at)
        if mask(checksum(bytes(view[at : at + 8]))) != expected:
            raise FrameError(
                f"record {number}, from byte {at:,} on, has a length that is not what was written"
            )
        begin = at + _HEADER.size
        at = begin + length + _FOOTER.size
        if at > len(view):
            if whole:
                raise FrameError(f"record {number}, from byte {begin - _HEADER.size:,} on, is truncated")
            return
        record = bytes(view[begin : begin + length])
        if mask(checksum(record)) != _FOOTER.unpack_from(view, begin + length)[0]:
            raise FrameError(f"record {number}, from byte {begin:,} on, is not what was written")
        yield record
        number += 1
