"""What a rank gets of each batch: some of the columns, and with context parallelism a part of each sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.errors import PlanError
from windrow.core.integers import as_integer
from windrow.io.catalog.column_selection import make_unknown_column_error
from windrow.pipeline.delivery.sequence_chunks import Chunks, cut_column, dimensions

SequenceLayout = Literal["contiguous", "head_tail"]

POSITION_IDS = "position_ids"


@dataclass(frozen=True)
class SequenceSlice:
    """The part of each row's sequence that a rank gets, for ranks that compute one sequence together.

    Lengths must be divisible by ``count``, or by ``2 * count`` with several parts of the layout ``"head_tail"``.
    Batches get a column ``position_ids`` of shape (rows, length), unless there is one already: where in the whole
    sequence each element is.

    Parameters
    ----------
    dim
        The dimension of a batch that sequences lie along: 1 for columns of shape (rows, length, ...).
    index, count
        Which part, and the number of parts. None: by the ``sequence_dims`` of ``shard(mesh=...)``.
    layout
        ``"contiguous"``: part i of ``count``. ``"head_tail"``: chunks i and 2 * count - 1 - i of 2 * count, which
        gives all ranks equal work where attention is causal.
    columns
        The columns to cut; the others are delivered whole. None: all that have this dimension.

    Raises
    ------
    PlanError
        If an argument is invalid; when batches are read, if a column cannot be cut: names it, and how to fix it.

    Examples
    --------
    >>> import windrow
    >>> rows = windrow.from_items([{"tokens": [10, 11, 12, 13, 14, 15, 16, 17]}])
    >>> part = windrow.SequenceSlice(dim=1, index=0, count=2, layout="head_tail")
    >>> [batch] = rows.iter_batches(sequence=part)
    >>> batch["tokens"][0].tolist(), batch["position_ids"][0].tolist()
    ([10, 11, 16, 17], [0, 1, 6, 7])
    """

    dim: int = 1
    index: int | None = None
    count: int | None = None
    layout: SequenceLayout = "contiguous"
    columns: Sequence[str] | None = None

    def __post_init__(self) -> None:
        dim, index, count = as_integer(self.dim), as_integer(self.index), as_integer(self.count)
        if dim is None or dim < 1:
            raise PlanError(
                f"dim={self.dim!r} must be an integer of 1 or more: dimension 0 of a batch is its rows"
            )
        if (self.index is None) != (self.count is None):
            raise PlanError(
                f"SequenceSlice(index={self.index!r}, count={self.count!r}): give both, or neither"
            )
        if self.count is not None:
            if count is None or count < 1:
                raise PlanError(f"count={self.count!r} must be an integer of 1 or more")
            if index is None or not 0 <= index < count:
                raise PlanError(f"index={self.index!r} must be an integer from 0 to count - 1 = {count - 1}")
        if self.layout not in get_args(SequenceLayout):
            raise PlanError(
                f"layout={self.layout!r} must be one of {', '.join(map(repr, get_args(SequenceLayout)))}"
            )
        columns = _check_columns(self.columns)
        for name, value in (("dim", dim), ("index", index), ("count", count), ("columns", columns)):
            object.__setattr__(self, name, value)

    def at(self, index: int, count: int) -> SequenceSlice:
        """The same for part ``index`` of ``count``."""
        return replace(self, index=index, count=count)

    @property
    def chunks(self) -> Chunks:
        """Which equal parts of a sequence these are."""
        assert self.index is not None, "a reader knows its part"
        assert self.count is not None, "a reader knows its part"
        why = f", as layout={self.layout!r} with count={self.count} does"
        if self.layout == "contiguous" or self.count == 1:
            return Chunks(self.count, (self.index,), why)
        return Chunks(2 * self.count, (self.index, 2 * self.count - 1 - self.index), why)

    def positions(self, length: int) -> NDArray[np.int64]:
        """The positions of this part in a sequence of ``length`` elements."""
        return self.chunks.positions(length)

    def cut(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Cut the sequences of rows, and add the positions."""
        names = self.names(rows.schema)
        columns, fields = rows.columns, list(rows.schema)
        length = -1
        for at, field in enumerate(rows.schema):
            if field.name not in names:
                continue
            columns[at], fields[at], own = cut_column(rows.column(at), field, self.dim, self.chunks)
            if length >= 0 <= own != length and POSITION_IDS not in rows.schema.names:
                raise PlanError(
                    f"column {field.name!r} has sequences of {own} elements along dimension {self.dim}, and "
                    f"{names[0]!r} of {length}: name those to cut, SequenceSlice(columns=[...])"
                )
            length = own if length < 0 else length
        if POSITION_IDS not in rows.schema.names:
            columns.append(_repeat(self.positions(max(length, 0)), rows.num_rows))
            fields.append(pa.field(POSITION_IDS, columns[-1].type))
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields, rows.schema.metadata))

    def names(self, schema: pa.Schema) -> list[str]:
        """The columns that are cut; a PlanError if one cannot be."""
        if self.columns is None:
            found = [field.name for field in schema if dimensions(field.type) >= self.dim]
            if not found:
                raise PlanError(
                    f"no column has a dimension {self.dim} to cut sequences along; there are "
                    f"{', '.join(f'{field.name!r} of type {field.type}' for field in schema)}"
                )
            return found
        for name in self.columns:
            if name not in schema.names:
                raise PlanError(f"SequenceSlice(columns=): there is no column {name!r}, only {schema.names}")
            kind = schema.field(name).type
            if dimensions(kind) < self.dim:
                raise PlanError(
                    f"column {name!r} of type {kind} has no dimension {self.dim} to cut sequences along: it needs "
                    "lists of one length, or tensors of one shape"
                )
        return list(self.columns)


@dataclass(frozen=True)
class Selection:
    """The columns, and the part of each sequence, that one reader gets of each batch.

    ``by_place``: the part follows from the reader's place alone, so that columns without sequences are no error.
    """

    columns: Sequence[str] | None = None
    sequence: SequenceSlice | None = None
    by_place: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", _check_columns(self.columns))
        if self.sequence is not None and not isinstance(self.sequence, SequenceSlice):
            raise PlanError(f"sequence={self.sequence!r} must be a windrow.SequenceSlice")

    def for_part(self, part: tuple[int, int] | None) -> Selection:
        """The same where ``part`` says which part of a sequence a reader gets, by its place on a mesh."""
        sequence = self.sequence
        if part is None:
            if sequence is not None and sequence.count is None:
                raise PlanError(
                    "SequenceSlice() without index and count needs a shard with sequence_dims, which say which part "
                    "it reads: pass sequence_dims= to shard(), or index= and count="
                )
            return self
        if sequence is None:
            return replace(self, sequence=SequenceSlice(1, *part), by_place=True)
        return self if sequence.count is not None else replace(self, sequence=sequence.at(*part))

    def apply(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        if self.columns is not None:
            missing = [name for name in self.columns if name not in rows.schema.names]
            if missing:
                raise make_unknown_column_error(missing[0], rows.schema.names, "columns=")
            rows = rows.select(list(self.columns))
        sequence = self.sequence_of(rows.schema)
        return rows if sequence is None else sequence.cut(rows)

    def sequence_of(self, schema: pa.Schema) -> SequenceSlice | None:
        """What cuts the sequences of the selected columns, given their schema; None: nothing does."""
        # a rank without columns counts steps only
        if self.sequence is None or not schema.names:
            return None
        has_sequences = any(dimensions(field.type) >= self.sequence.dim for field in schema)
        return self.sequence if has_sequences or not self.by_place else None

    def of_schema(self, schema: pa.Schema) -> pa.Schema:
        if self.columns is None and self.sequence is None:
            return schema
        return self.apply(pa.RecordBatch.from_pylist([], schema=schema)).schema


def _check_columns(columns: Sequence[str] | None) -> tuple[str, ...] | None:
    if isinstance(columns, str):
        raise PlanError(f"columns={columns!r} must be a sequence of names, such as [{columns!r}]")
    return None if columns is None else tuple(columns)


def _repeat(positions: NDArray[np.int64], rows: int) -> Any:
    if not len(positions):
        # Arrow has no lists of the fixed size 0
        return pa.array([[]] * rows, pa.list_(pa.int64()))
    return pa.FixedSizeListArray.from_arrays(pa.array(np.tile(positions, rows)), len(positions))
