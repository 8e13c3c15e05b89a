"""What the readers on a node take of a shard's rows, so that nothing else need cross to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

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

    ``tokens``: how many rows in turn are the tokens of a packed sequence; 0: sequences are values of a column.

    >>> labels, tokens = Selection(columns=["label"]), Selection(columns=["tokens"])
    >>> wanted = Wanted.by([labels, tokens])
    >>> list(wanted.of_columns(pa.schema({"label": pa.int64(), "tokens": pa.int64(), "text": pa.string()})))
    ['label', 'tokens']
    """

    selections: frozenset[Selection]
    tokens: int = 0

    @classmethod
    def by(cls, selections: Iterable[Selection], tokens: int = 0) -> Wanted:
        """What is wanted where each of some selections is applied."""
        found = frozenset(selections)
        return EVERYTHING if Selection() in found else cls(found, tokens)

    @property
    def is_everything(self) -> bool:
        """Whether rows are wanted as they are."""
        return Selection() in self.selections

    def __or__(self, other: Wanted) -> Wanted:
        return Wanted.by(self.selections | other.selections, self.tokens or other.tokens)

    def covers(self, other: Wanted) -> bool:
        """Whether it is enough for the readers of another one."""
        return self.is_everything or other.selections <= self.selections

    def with_whole_sequences(self) -> Wanted:
        """The same columns, uncut."""
        return Wanted.by((Selection(selection.columns) for selection in self.selections), self.tokens)

    def of_columns(self, schema: pa.Schema) -> Mapping[str, SequencePart | None]:
        """The wanted columns of a schema, and the parts of their sequences; None: whole ones.

        All of them if a selection does not fit the schema: its reader says so once it has rows. Tokens are not cut
        but left out by `token_places`.
        """
        found: dict[str, set[SequencePart | None]] = {}
        for selection in self.selections:
            names = _names(selection, schema)
            if names is None:
                return dict.fromkeys(schema.names)
            for name, part in _parts(selection, pa.schema([schema.field(name) for name in names])).items():
                found.setdefault(name, set()).add(None if self.tokens else part)
        return {name: _join(found[name]) for name in schema.names if name in found}

    def token_places(self, schema: pa.Schema) -> NDArray[np.bool_] | None:
        """(tokens,) which places of a sequence are wanted, in any column; None: all.

        >>> from windrow import SequenceSlice
        >>> half = SequenceSlice(index=0, count=2, layout="head_tail")
        >>> wanted = Wanted.by([Selection(sequence=half)], tokens=8)
        >>> wanted.token_places(pa.schema({"tokens": pa.int32()})).tolist()
        [True, True, False, False, False, False, True, True]
        """
        if not self.tokens or self.is_everything:
            return None
        found = np.zeros(self.tokens, np.bool_)
        for selection in self.selections:
            names = _names(selection, schema)
            if names is None:
                return None
            packed = [pa.field(name, pa.list_(schema.field(name).type, self.tokens)) for name in names]
            for part in _parts(selection, pa.schema(packed)).values():
                if part is None or self.tokens % part.chunks.count:
                    return None
                found[part.chunks.positions(self.tokens)] = True
        return None if found.all() else found

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


def _names(selection: Selection, schema: pa.Schema) -> Sequence[str] | None:
    """The columns that are selected of a schema; None if it lacks one."""
    names = schema.names if selection.columns is None else selection.columns
    return names if set(names) <= set(schema.names) else None


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
