"""What the readers on a node take of a shard's rows, so that nothing else need cross to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from windrow.core.errors import PlanError
from windrow.pipeline.delivery.sequence_chunks import Chunks, cut_column
from windrow.pipeline.delivery.sequence_slice import Selection


@dataclass(frozen=True)
class SequencePart:
    """The parts of a column's sequences that are wanted, along a dimension."""

    dim: int
    chunks: Chunks


@dataclass(frozen=True)
class Wanted:
    """The union of what some readers select.

    >>> labels, tokens = Selection(columns=["label"]), Selection(columns=["tokens"])
    >>> wanted = Wanted.by([labels, tokens])
    >>> list(wanted.of_columns(pa.schema({"label": pa.int64(), "tokens": pa.int64(), "text": pa.string()})))
    ['label', 'tokens']
    """

    selections: frozenset[Selection]

    @classmethod
    def by(cls, selections: Iterable[Selection]) -> Wanted:
        """What is wanted where each of some selections is applied."""
        found = frozenset(selections)
        return EVERYTHING if Selection() in found else cls(found)

    @property
    def is_everything(self) -> bool:
        """Whether rows are wanted as they are."""
        return Selection() in self.selections

    def __or__(self, other: Wanted) -> Wanted:
        return Wanted.by(self.selections | other.selections)

    def covers(self, other: Wanted) -> bool:
        """Whether it is enough for the readers of another one."""
        return self.is_everything or other.selections <= self.selections

    def with_whole_sequences(self) -> Wanted:
        """The same columns, uncut."""
        return Wanted.by(Selection(selection.columns) for selection in self.selections)

    def of_columns(self, schema: pa.Schema) -> Mapping[str, SequencePart | None]:
        """The wanted columns of a schema, and the parts of their sequences; None: whole ones.

        All of them if a selection does not fit the schema: its reader says so once it has rows.
        """
        found: dict[str, set[SequencePart | None]] = {}
        for selection in self.selections:
            names = schema.names if selection.columns is None else selection.columns
            if not set(names) <= set(schema.names):
                return dict.fromkeys(schema.names)
            for name, part in _parts(selection, pa.schema([schema.field(name) for name in names])).items():
                found.setdefault(name, set()).add(part)
        return {name: _join(found[name]) for name in schema.names if name in found}

    def narrow(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Leave out what is not wanted of rows; fields of cut columns say which parts they hold.

        Raises
        ------
        PlanError
            If sequences cannot be cut.
        """
        parts = {} if self.is_everything else self.of_columns(rows.schema)
        if self.is_everything or (len(parts) == rows.num_columns and not any(parts.values())):
            return rows
        rows = rows.select(list(parts))
        if not any(parts.values()):
            return rows
        columns, fields = rows.columns, list(rows.schema)
        for at, part in enumerate(parts.values()):
            if part is not None:
                columns[at], fields[at], _ = cut_column(
                    columns[at], fields[at], part.dim, part.chunks, marks=True
                )
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields, rows.schema.metadata))


def _parts(selection: Selection, schema: pa.Schema) -> Mapping[str, SequencePart | None]:
    sequence = selection.sequence_of(schema)
    parts: dict[str, SequencePart | None] = dict.fromkeys(schema.names)
    if sequence is not None:
        try:
            cut = sequence.names(schema)
        except PlanError:
            return parts
        parts.update(dict.fromkeys(cut, SequencePart(sequence.dim, sequence.chunks)))
    return parts


def _join(parts: set[SequencePart | None]) -> SequencePart | None:
    """What holds all of some parts; None, so everything, where they are cut in different ways."""
    known = [part for part in parts if part is not None]
    if len(known) < len(parts) or len({(part.dim, part.chunks.count) for part in known}) > 1:
        return None
    kept = sorted({number for part in known for number in part.chunks.kept})
    count = known[0].chunks.count
    return None if len(kept) == count else SequencePart(known[0].dim, Chunks(count, tuple(kept)))


EVERYTHING = Wanted(frozenset([Selection()]))
