"""WebDataset: tar archives of samples; each sample is a row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
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
from windrow.io.formats.sample_columns import DecodeError, decode_column, infer_column
from windrow.io.formats.table_reader import PART_BYTES, TableReader
from windrow.io.formats.tar_samples import Sample, TarError, group_members, iter_members
from windrow.io.formats.type_widening import unify_inferred, widen_json
from windrow.io.storage.filesystems import Files

if TYPE_CHECKING:
    import pyarrow.compute as pc

__all__ = ["KEY_COLUMN", "WebDatasetFormat"]

KEY_COLUMN = "__key__"

_SAMPLES = 100


@dataclass(frozen=True)
class WebDatasetFormat:
    """Archives of samples; each archive is a row group.

    Attributes
    ----------
    compression
        A codec, ``"infer"`` (by suffix), or None.
    decode
        The Pillow mode to which images are decoded; None keeps their bytes.
    dtypes
        The user's types by extension.
    complete
        Whether all columns are read, so that an unknown extension is an error.
    """

    compression: str | None
    decode: str | None = None
    dtypes: Mapping[str, pa.DataType] | None = None
    complete: bool = False
    name: str = "WebDataset"
    rows_known: bool = False
    joins_files: bool = False

    @property
    def options(self) -> str:
        """The options that affect values."""
        types = {name: str(kind) for name, kind in (self.dtypes or {}).items()}
        return f"compression={self.compression}, decode={self.decode}, dtypes={types}"

    def look(self, files: Files, path: str) -> Fragment:
        """Infer the columns of an archive from its first samples.

        Raises
        ------
        SourceError
            If the file cannot be read or is not an archive of samples.
        """
        return look_at(files, path, self._summarise)

    def unify(self, schemas: Sequence[tuple[str, pa.Schema]]) -> pa.Schema:
        """Unify the inferred types over all archives; an extension can be missing from some."""
        return unify_inferred(schemas, widen_json, fill=True, fix="give dtypes=")

    def reader(
        self,
        files: Files,
        schema: pa.Schema,
        stored: pa.Schema,
        partitions: Partitions,
        row_filter: pc.Expression | None,
    ) -> TableReader:
        """Make a reader of blocks, each one archive."""
        complete = set(stored.names) <= set(schema.names)
        return TableReader(replace(self, complete=complete), files, schema, stored, partitions, row_filter)

    def read(self, file: OpenFile, start: int, stop: int, schema: pa.Schema) -> pa.Table:
        """Read an archive as a table; raises `CorruptBlockError` if it is corrupt or does not fit the schema."""
        tables = list(self.tables(file, start, stop, schema))
        return pa.concat_tables(tables) if tables else empty_table(schema)

    def can_map(self, schema: pa.Schema) -> bool:
        """Always true: decoding copies."""
        return True

    def tables(self, file: OpenFile, start: int, stop: int, schema: pa.Schema) -> Iterator[pa.Table]:
        """Read samples in batches of some megabytes."""
        file.fetch([(0, file.size_bytes)])
        data = decompress(find_codec(self.compression, file.name), file.read_range(0, file.size_bytes))
        key = ""
        try:
            for samples in _batched(group_members(iter_members(data))):
                key = samples[0].key
                yield self._decode(samples, schema)
        except TarError as error:
            raise CorruptBlockError(f"{file.name}: {error}; restore the file, or write it again") from error
        except (DecodeError, pa.ArrowException) as error:
            raise CorruptBlockError(
                f"{file.name}, in the samples from {key!r} on: {error}; repair it, or give dtypes="
            ) from error

    def _decode(self, samples: Sequence[Sample], schema: pa.Schema) -> pa.Table:
        if self.complete:
            _check_extensions(samples, set(schema.names))
        arrays = [self._column(samples, field) for field in schema]
        if not arrays:
            return pa.table({KEY_COLUMN: [sample.key for sample in samples]})
        return pa.table(arrays, schema=schema)

    def _column(self, samples: Sequence[Sample], field: pa.Field) -> pa.Array:
        if field.name == KEY_COLUMN:
            return pa.array([sample.key for sample in samples], pa.string())
        contents = [sample.members.get(field.name) for sample in samples]
        requested = field.name in (self.dtypes or {})
        return decode_column(field.name, contents, field.type, self.decode, requested=requested)

    def _summarise(self, file: OpenFile) -> FragmentFacts:
        for head in read_heads(file, find_codec(self.compression, file.name)):
            try:
                members = iter_members(head.data, whole=head.whole)
                samples = list(islice(group_members(members, whole=head.whole), _SAMPLES))
                if samples or head.whole:
                    return self._describe(samples, head.content_bytes)
            except (TarError, DecodeError, pa.ArrowException) as error:
                raise SourceError(
                    f"{file.name} is not an archive of samples as described: {error}; check compression=, "
                    f"dtypes= and decode="
                ) from error
        raise AssertionError("the last head is the whole file")

    def _describe(self, samples: Sequence[Sample], content_bytes: int) -> FragmentFacts:
        given = self.dtypes or {}
        types = {KEY_COLUMN: pa.string()} if samples or given else {}
        for extension in dict.fromkeys([*(name for sample in samples for name in sample.members), *given]):
            contents = [sample.members.get(extension) for sample in samples]
            types[extension] = given.get(extension) or infer_column(extension, contents, self.decode)
        schema = pa.schema(list(types.items()))
        sample = replace(self, complete=False)._decode(samples, schema) if samples else empty_table(schema)
        return estimate_facts(sample, samples[-1].end if samples else 0, [content_bytes])


def _check_extensions(samples: Sequence[Sample], names: set[str]) -> None:
    for sample in samples:
        for extension in sample.members:
            if extension not in names:
                raise DecodeError(
                    f"sample {sample.key!r} has a member {extension!r}, which is missing from every archive's first "
                    f"samples: give its type with dtypes=, or exclude it with columns="
                )


def _batched(samples: Iterable[Sample]) -> Iterator[list[Sample]]:
    batch: list[Sample] = []
    batch_bytes = 0
    for sample in samples:
        batch.append(sample)
        batch_bytes += sum(content.size for content in sample.members.values())
        if batch_bytes >= PART_BYTES:
            yield batch
            batch, batch_bytes = [], 0
    if batch:
        yield batch
