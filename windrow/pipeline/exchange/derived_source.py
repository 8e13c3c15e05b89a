"""`DerivedSource`: a source whose rows an operation makes of its parents', which are sources with their transforms."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.arrow_support import empty_table
from windrow.core.cached_properties import cached_property
from windrow.core.errors import PlanError
from windrow.core.source import (
    BlockAddress,
    BlockReader,
    Source,
    SourceIdentity,
    TracingSource,
    prepare_source,
    with_stages,
)
from windrow.io.catalog.listed_source import NumberedRows
from windrow.io.catalog.manifest import digest_parts, digest_schema
from windrow.io.catalog.row_ids import count_rows, in_threads
from windrow.pipeline.plan.head import find_schema
from windrow.pipeline.plan.job import Job
from windrow.pipeline.tasks.map_batches import MapBatches
from windrow.pipeline.tasks.row_generator import StoredRows
from windrow.pipeline.tasks.row_measure import measure_rows
from windrow.pipeline.tasks.transforms import apply_maps, check_schema

DEFAULT_BLOCK_BYTES = 64 * 2**20


@dataclass(frozen=True)
class ParentReader:
    """Reads the rows that the transforms make of a block."""

    reader: BlockReader
    maps: tuple[MapBatches, ...]
    # of the transformed rows
    schema: pa.Schema

    def with_stages(self, replace_stages: Callable[[tuple[Any, ...]], tuple[Any, ...]]) -> ParentReader:
        """The same reader with others for its transforms, and for those of its own parents."""
        inner = with_stages(self.reader, replace_stages)
        return replace(self, reader=inner, maps=replace_stages(self.maps))

    def read(self, address: BlockAddress) -> pa.Table:
        """Read and transform one block; a table of `schema`."""
        positions = StoredRows(address.number)
        table = apply_maps(self.reader.read(address), self.maps, address.origin, positions)
        if not table.num_rows:
            # transforms are not applied to empty tables, so the schema is not the final one
            return empty_table(self.schema)
        if self.maps:
            check_schema(self.schema, table.schema, address.origin)
        return table.replace_schema_metadata(None)

    def read_columns(self, address: BlockAddress, names: Sequence[str]) -> pa.Table:
        """Read columns of one block; without transforms, the others are not decoded."""
        if self.maps or len(names) == len(self.schema):
            return self.read(address).select(list(names))
        columns = [self.schema.get_field_index(name) for name in names]
        parts = [part.select(columns) for part in self.reader.parts(address)]
        if not parts:
            return empty_table(self.schema).select(columns)
        return pa.concat_tables(parts).replace_schema_metadata(None)


@dataclass(frozen=True, eq=False)
class Parent:
    """A source and the transforms before everything else."""

    source: Source
    maps: tuple[MapBatches, ...] = ()

    @cached_property
    def schema(self) -> pa.Schema:
        """The schema of the rows; with transforms, the first block that has rows is read."""
        return find_schema(Job(self.source, before=self.maps)).remove_metadata()

    @property
    def known_schema(self) -> pa.Schema | None:
        """The schema where nothing has to be read for it."""
        return None if self.maps else self.source.schema

    @property
    def reader(self) -> ParentReader:
        """The reader of the transformed rows."""
        return ParentReader(self.source.reader, self.maps, self.schema)

    @property
    def rows_known(self) -> bool:
        """Whether the source states the row counts, and no transform changes them."""
        return self.source.blocks.rows_known and all(stage.preserves_rows for stage in self.maps)

    @property
    def rows_bounded(self) -> bool:
        """Whether the row counts that the source states are upper bounds."""
        return self.source.blocks.rows_bounded and all(stage.preserves_rows for stage in self.maps)

    @cached_property
    def row_counts(self) -> NDArray[np.int64]:
        """(blocks,) the rows of each block, counted by reading where they are not known."""
        if self.rows_known:
            return self.source.blocks.rows
        if isinstance(self.source, TracingSource) and all(stage.preserves_rows for stage in self.maps):
            return self.source.count_blocks()
        return count_rows(self.reader.read, self.source.addresses(range(len(self.source.blocks.rows))))

    def measure_rows(self, column: str, caller: str) -> list[NDArray[np.float32]]:
        """What the rows of each block measure by a column, which is read for that; ``caller`` is named in errors."""
        reader = self.reader

        def measure(address: BlockAddress) -> NDArray[np.float32]:
            return measure_rows(reader.read_columns(address, [column]), column, address.origin, caller)

        return in_threads(measure, self.source.addresses(range(len(self.source.blocks.rows))))

    @property
    def digest(self) -> bytes:
        """A digest of the data and its cut into blocks, and of how many transforms change rows.

        The code of transforms cannot be digested.
        """
        changes = sum(not stage.preserves_rows for stage in self.maps)
        content = f"{self.source.contents}\n{self.source.identity().fingerprint}\n{changes}"
        return hashlib.sha256(content.encode()).digest()


@dataclass(frozen=True, eq=False, repr=False)
class DerivedSource(NumberedRows):
    """What all derived sources share; a `Source`, so that windows, shards and states work on it."""

    parents: tuple[Parent, ...]
    # the call in errors and states: "sort('x')"
    call: str
    # how the dataset with this call at its end is printed
    text: str

    def __repr__(self) -> str:
        return self.text

    @cached_property
    def fingerprint(self) -> str:
        """A digest of the parents' data and of the operation."""
        return self.derivation_digest

    @property
    def derivation_digest(self) -> str:
        """A digest of the parents' data and of the call."""
        return digest_parts([self.call.encode(), *(parent.digest for parent in self.parents)])

    def identity(self, files: int | None = None) -> SourceIdentity:
        """Raises a `PlanError` unless ``files`` is 1: what was appended to the parents changes all rows."""
        if files not in (None, 1):
            raise PlanError(f"{self.call} cannot identify its first {files} files separately")
        return SourceIdentity(
            fingerprint=self.fingerprint,
            schema=digest_schema(self.schema),
            files=1,
            rows=int(self.blocks.rows.sum()),
            block_bytes=DEFAULT_BLOCK_BYTES,
            filter="",
        )

    @property
    def contents(self) -> str:
        schema, rows = self.schema.serialize().to_pybytes(), self.blocks.rows.tobytes()
        return digest_parts((self.fingerprint.encode(), schema, rows))

    @property
    def null_counts(self) -> Mapping[str, int | None]:
        return dict.fromkeys(self.schema.names)

    def prepare(self) -> None:
        """Do the work that the parents need before their blocks have addresses."""
        for parent in self.parents:
            prepare_source(parent.source)
