"""Packing in a mixture: each source makes lists of its documents' tokens, and all are packed in the same way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.pipeline.delivery.to_numpy import list_offsets
from windrow.pipeline.tasks.document_columns import join_chunks
from windrow.pipeline.tasks.map_batches import MapBatches
from windrow.pipeline.tasks.sequence_packing import SequencePacking


@dataclass(frozen=True)
class MixedPacking(SequencePacking):
    """Packs documents of several sources, which `list_documents` has prepared: lists of equal lengths a row."""

    def check_schema(self, schema: pa.Schema) -> None:
        """Do nothing: sources have been checked."""

    def flatten(self, table: pa.Table, origin: str) -> tuple[pa.Table, NDArray[np.int32]]:
        """As of `SequencePacking`; values can be null where a source repeats them."""
        if not table.num_rows:
            return pa.table({}), np.zeros(0, np.int32)
        values, lengths = [], np.zeros(0, np.int64)
        for name in self.columns:
            lists = join_chunks(name, table.column(name), f"pack, {origin}: ")
            offsets = list_offsets(lists)
            values.append(lists.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0])))
            lengths = np.diff(offsets)
        return pa.table(values, names=list(self.columns)), lengths.astype(np.int32)


@dataclass(frozen=True)
class JoinedPacking(SequencePacking):
    """Packs documents of several sources in the order of their mixture.

    A column with the name of each one's source becomes one of the number of that name.
    """

    source_column: str | None = None
    names: tuple[str, ...] = ()

    def schema_of(self, schema: pa.Schema) -> pa.Schema:
        """The schema of documents as they are packed, given that of their source."""
        if self.source_column not in schema.names:
            return schema
        at = schema.names.index(self.source_column)
        return schema.set(at, pa.field(self.source_column, pa.int32()))

    def check_schema(self, schema: pa.Schema) -> None:
        """Raise PlanError if documents with this schema cannot be packed."""
        super().check_schema(self.schema_of(schema))

    def token_bytes(self, schema: pa.Schema) -> int:
        """As of `SequencePacking`."""
        return super().token_bytes(self.schema_of(schema))

    def flatten(self, table: pa.Table, origin: str) -> tuple[pa.Table, NDArray[np.int32]]:
        """As of `SequencePacking`."""
        if self.source_column in table.column_names:
            at = table.column_names.index(self.source_column)
            table = table.set_column(at, self.source_column, self._number(table.column(at)))
        return super().flatten(table, origin)

    def _number(self, names: pa.ChunkedArray) -> pa.ChunkedArray:
        import pyarrow.compute as pc

        if pa.types.is_integer(names.type):
            return names
        return pc.index_in(names, pa.array(list(self.names), names.type))


def list_documents(packing: SequencePacking, number: int, source_column: str | None) -> MapBatches:
    """The transform of a source's documents into lists of tokens, for `MixedPacking`.

    With a ``source_column``, each token has the source's number in it, which `name_sources` makes a name of.
    """
    return MapBatches(partial(_list_documents, packing, number, source_column), "pyarrow", call=str(packing))


def _list_documents(
    packing: SequencePacking, number: int, source_column: str | None, documents: pa.Table
) -> pa.Table:
    lists = packing.documents(documents)
    if source_column is None:
        return lists
    offsets = lists.column(0).chunk(0).offsets
    numbers = np.full(int(offsets[-1].as_py()), number, np.uint16)
    return lists.append_column(source_column, pa.LargeListArray.from_arrays(offsets, pa.array(numbers)))


def count_tokens(packing: SequencePacking) -> MapBatches:
    """The transform of documents into as many rows as they have tokens."""
    return MapBatches(partial(_count_tokens, packing), "pyarrow", preserves_rows=False, call=str(packing))


def _count_tokens(packing: SequencePacking, documents: pa.Table) -> pa.Table:
    return pa.table({"tokens": pa.nulls(int(packing.count_tokens(documents).sum()))})


def name_sources(names: Sequence[str], source_column: str) -> MapBatches:
    """The transform of sequences whose tokens have their source's number into ones with its name."""
    call = f"source_column({source_column!r})"
    return MapBatches(partial(_name_sources, tuple(names), source_column), "pyarrow", call=call)


def _name_sources(names: Sequence[str], source_column: str, sequences: pa.Table) -> pa.Table:
    at = sequences.column_names.index(source_column)
    column = sequences.column(at)
    numbers = column.combine_chunks().flatten() if column.num_chunks != 1 else column.chunk(0).flatten()
    firsts = np.arange(sequences.num_rows) * column.type.list_size
    found = pa.array(list(names), pa.string()).take(numbers.take(pa.array(firsts)))
    return sequences.set_column(at, source_column, found)
