"""TFRecord files of ``tf.train.Example``, read without TensorFlow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from windrow.core.empty_tables import empty_table
from windrow.core.errors import SourceError
from windrow.core.source import CorruptBlockError
from windrow.io.catalog.fragments import Fragment, FragmentFacts
from windrow.io.catalog.hive_partitions import Partitions
from windrow.io.formats.block_files import OpenFile
from windrow.io.formats.compression import decompress, find_codec
from windrow.io.formats.file_head import look_at, read_heads
from windrow.io.formats.row_estimate import estimate_facts
from windrow.io.formats.table_reader import PART_BYTES, TableReader
from windrow.io.formats.tfrecord_columns import infer_type, list_kind, to_array
from windrow.io.formats.tfrecord_features import FeatureError, gather_features
from windrow.io.formats.tfrecord_frames import FrameError, frame_bytes, iter_records
from windrow.io.formats.type_widening import unify_inferred, widen_features
from windrow.io.storage.filesystems import Files

if TYPE_CHECKING:
    import pyarrow.compute as pc

__all__ = ["TFRecordFormat"]

_SAMPLE_RECORDS = 1000


@dataclass(frozen=True)
class TFRecordFormat:
    """Files of examples; each file is a row group.

    Attributes
    ----------
    compression
        A codec, ``"infer"`` (by suffix), or None.
    features
        The user's types by feature.
    complete
        Whether all features are read, so that an unknown feature is an error.
    """

    compression: str | None
    features: Mapping[str, pa.DataType] | None = None
    complete: bool = False
    name: str = "TFRecord"
    rows_known: bool = False
    joins_files: bool = False

    @property
    def options(self) -> str:
        """The options that affect values."""
        types = {name: str(kind) for name, kind in (self.features or {}).items()}
        return f"compression={self.compression}, features={types}"

    def look(self, files: Files, path: str) -> Fragment:
        """Infer the columns of a file from its first records.

        Raises
        ------
        SourceError
            If the file cannot be read or is not a TFRecord file of examples.
        """
        return look_at(files, path, self._summarise)

    def unify(self, schemas: Sequence[tuple[str, pa.Schema]]) -> pa.Schema:
        """Unify the inferred types over all files; a feature can be missing from some."""
        return unify_inferred(schemas, widen_features, fill=True, fix="give features=")

    def reader(
        self,
        files: Files,
        schema: pa.Schema,
        stored: pa.Schema,
        partitions: Partitions,
        row_filter: pc.Expression | None,
    ) -> TableReader:
        """Make a reader of blocks, each one file."""
        complete = self.features is None and set(stored.names) <= set(schema.names)
        return TableReader(replace(self, complete=complete), files, schema, stored, partitions, row_filter)

    def read(self, file: OpenFile, start: int, stop: int, schema: pa.Schema) -> pa.Table:
        """Read a file as a table; raises `CorruptBlockError` if it is corrupt or does not fit the schema."""
        tables = list(self.tables(file, start, stop, schema))
        return pa.concat_tables(tables) if tables else empty_table(schema)

    def can_map(self, schema: pa.Schema) -> bool:
        """Always true: decoding copies."""
        return True

    def tables(self, file: OpenFile, start: int, stop: int, schema: pa.Schema) -> Iterator[pa.Table]:
        """Read records in batches of some megabytes."""
        file.fetch([(0, file.size_bytes)])
        data = decompress(find_codec(self.compression, file.name), file.read_range(0, file.size_bytes))
        first = 0
        try:
            for records in _batched(iter_records(data)):
                yield self._decode(records, schema)
                first += len(records)
        except FrameError as error:
            raise CorruptBlockError(f"{file.name}: {error}; restore the file, or write it again") from error
        except (FeatureError, pa.ArrowException) as error:
            where = f"{file.name}, in the records from {first} on"
            raise CorruptBlockError(f"{where}: {error}; check whether it holds tf.train.Example") from error

    def _decode(self, records: Sequence[bytes], schema: pa.Schema) -> pa.Table:
        kinds = {field.name: list_kind(field.type) or "" for field in schema}
        found = gather_features(records, kinds, complete=self.complete)
        if not found:
            return pa.table({"": pa.nulls(len(records))})
        return pa.table([to_array(found[field.name], field.type) for field in schema], schema=schema)

    def _summarise(self, file: OpenFile) -> FragmentFacts:
        for head in read_heads(file, find_codec(self.compression, file.name)):
            try:
                records = _take_first(iter_records(head.data, whole=head.whole))
                if records or head.whole:
                    return self._describe(records, head.content_bytes)
            except (FrameError, FeatureError, pa.ArrowException) as error:
                raise SourceError(
                    f"{file.name} is not a TFRecord file of examples as described: {error}; check compression= and "
                    f"features="
                ) from error
        raise AssertionError("the last head is the whole file")

    def _describe(self, records: Sequence[bytes], content_bytes: int) -> FragmentFacts:
        given = dict(self.features or {})
        found = gather_features(records, None, complete=False)
        names = list(given) if given else sorted(found)
        kinds = {name: given[name] if name in given else infer_type(found[name]) for name in names}
        schema = pa.schema(list(kinds.items()))
        sample = replace(self, complete=False)._decode(records, schema) if names else pa.table({})
        size = sum(map(len, records)) + frame_bytes * len(records)
        return estimate_facts(sample, size, [content_bytes])


def _batched(records: Iterable[bytes]) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    batch_bytes = 0
    for record in records:
        batch.append(record)
        batch_bytes += len(record)
        if batch_bytes >= PART_BYTES:
            yield batch
            batch, batch_bytes = [], 0
    if batch:
        yield batch


def _take_first(records: Iterable[bytes]) -> list[bytes]:
    return [record for record, _ in zip(records, range(_SAMPLE_RECORDS), strict=False)]
