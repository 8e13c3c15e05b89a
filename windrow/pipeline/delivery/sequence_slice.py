"""What a rank gets of each batch: some of the columns, and with context parallelism a part of each sequence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from numpy.typing import NDArray

from windrow.core.errors import PlanError
from windrow.core.integers import as_integer

SequenceLayout = Literal["contiguous", "head_tail"]

POSITION_IDS = "position_ids"


@dataclass(frozen=True)
class SequenceSlice:
    """The part of each row's sequence that a rank gets, for ranks that compute one sequence together.

    Lengths must be divisible by ``count``, or by ``2 * count`` with the layout ``"head_tail"``. Batches get a column
    ``position_ids`` of shape (rows, length): where in the whole sequence each element is, unless there is one already.

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
        if isinstance(self.columns, str):
            raise PlanError(
                f"columns={self.columns!r} must be a sequence of names, such as [{self.columns!r}]"
            )
        columns = None if self.columns is None else tuple(self.columns)
        for name, value in (("dim", dim), ("index", index), ("count", count), ("columns", columns)):
            object.__setattr__(self, name, value)

    def at(self, index: int, count: int) -> SequenceSlice:
        """The same for part ``index`` of ``count``."""
        return replace(self, index=index, count=count)

    def positions(self, length: int) -> NDArray[np.int64]:
        """The positions of this part in a sequence of ``length`` elements."""
        ranges = [np.arange(start, stop, dtype=np.int64) for start, stop in self._ranges(length)]
        return np.concatenate(ranges)

    def _ranges(self, length: int) -> list[tuple[int, int]]:
        index, count = self._part
        if self.layout == "contiguous":
            size = length // count
            return [(index * size, (index + 1) * size)]
        size = length // (2 * count)
        return [(at * size, (at + 1) * size) for at in (index, 2 * count - 1 - index)]

    @property
    def _part(self) -> tuple[int, int]:
        assert self.index is not None, "a reader knows its part"
        assert self.count is not None, "a reader knows its part"
        return self.index, self.count

    def cut(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Cut the sequences of rows, and add the positions."""
        names = self._names(rows.schema)
        columns, fields = rows.columns, list(rows.schema)
        length = -1
        for at, field in enumerate(rows.schema):
            if field.name not in names:
                continue
            columns[at], own = self._cut(rows.column(at), field.name)
            if length >= 0 <= own != length and POSITION_IDS not in rows.schema.names:
                raise PlanError(
                    f"column {field.name!r} has sequences of {own} elements along dimension {self.dim}, and "
                    f"{names[0]!r} of {length}: name those to cut, SequenceSlice(columns=[...])"
                )
            length = own if length < 0 else length
            fields[at] = field.with_type(columns[at].type)
        if POSITION_IDS not in rows.schema.names:
            columns.append(_repeat(self.positions(max(length, 0)), rows.num_rows))
            fields.append(pa.field(POSITION_IDS, columns[-1].type))
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields, rows.schema.metadata))

    def _names(self, schema: pa.Schema) -> list[str]:
        if self.columns is None:
            found = [field.name for field in schema if _dimensions(field.type) >= self.dim]
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
            if _dimensions(kind) < self.dim:
                raise PlanError(
                    f"column {name!r} of type {kind} has no dimension {self.dim} to cut sequences along: it needs "
                    "lists of one length, or tensors of one shape"
                )
        return list(self.columns)

    def _cut(self, array: Any, name: str) -> tuple[Any, int]:
        """Cut one column; returns it and the length of its sequences, -1 without rows."""
        kind = array.type
        if array.null_count:
            raise PlanError(
                f"column {name!r} has rows that are null, which have no sequence to cut: fill or filter them"
            )
        if isinstance(kind, pa.FixedShapeTensorType):
            return self._cut_tensors(array, name)
        length, values = _flatten(array, name)
        if self.dim > 1:
            # the outer lists keep their length
            inner, own = SequenceSlice(self.dim - 1, self.index, self.count, self.layout)._cut(values, name)
            return _wrap(kind, inner, length, len(array)), own
        self._check_length(length, name)
        ranges = self._ranges(max(length, 0))
        kept = _take_ranges(values, ranges, max(length, 0), len(array))
        size = sum(stop - start for start, stop in ranges)
        return _wrap(kind, kept, size, len(array)), length

    def _cut_tensors(self, array: Any, name: str) -> tuple[Any, int]:
        kind = array.type
        if kind.permutation is not None and list(kind.permutation) != sorted(kind.permutation):
            raise PlanError(
                f"column {name!r} of type {kind}: sequences of permuted tensors cannot be cut; store them as they lie"
            )
        shape = list(kind.shape)
        length = shape[self.dim - 1]
        self._check_length(length, name)
        ranges = self._ranges(length)
        outer = math.prod(shape[: self.dim - 1])
        inner = math.prod(shape[self.dim :])
        values = array.storage.flatten()
        scaled = [(start * inner, stop * inner) for start, stop in ranges]
        kept = _take_ranges(values, scaled, length * inner, len(array) * outer)
        shape[self.dim - 1] = sum(stop - start for start, stop in ranges)
        cut = pa.fixed_shape_tensor(kind.value_type, shape, dim_names=kind.dim_names)
        storage = pa.FixedSizeListArray.from_arrays(kept, math.prod(shape))
        return pa.ExtensionArray.from_storage(cut, storage), length

    def _check_length(self, length: int, name: str) -> None:
        parts = self._part[1] * (2 if self.layout == "head_tail" else 1)
        if length >= 0 and length % parts:
            raise PlanError(
                f"column {name!r}: sequences of {length} elements cannot be cut into {parts} equal parts, as "
                f"layout={self.layout!r} with count={self.count} does: make their length a "
                f"multiple of {parts}, by pack() or padding"
            )


@dataclass(frozen=True)
class Selection:
    """The columns, and the part of each sequence, that one reader gets of each batch."""

    columns: Sequence[str] | None = None
    sequence: SequenceSlice | None = None

    def __post_init__(self) -> None:
        if isinstance(self.columns, str):
            raise PlanError(
                f"columns={self.columns!r} must be a sequence of names, such as [{self.columns!r}]"
            )
        if self.sequence is not None and not isinstance(self.sequence, SequenceSlice):
            raise PlanError(f"sequence={self.sequence!r} must be a windrow.SequenceSlice")
        object.__setattr__(self, "columns", None if self.columns is None else tuple(self.columns))

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
            return replace(self, sequence=SequenceSlice(1, *part))
        return self if sequence.count is not None else replace(self, sequence=sequence.at(*part))

    def apply(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return what is selected of rows."""
        if self.columns is not None:
            missing = [name for name in self.columns if name not in rows.schema.names]
            if missing:
                raise PlanError(
                    f"columns={list(self.columns)!r}: batches have no column {missing[0]!r}, only {rows.schema.names}"
                )
            rows = rows.select(list(self.columns))
        # a rank without columns counts steps only
        return rows if self.sequence is None or not rows.num_columns else self.sequence.cut(rows)

    def of_schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema of what is selected."""
        if self.columns is None and self.sequence is None:
            return schema
        return self.apply(pa.RecordBatch.from_pylist([], schema=schema)).schema


def _dimensions(kind: Any) -> int:
    """The number of dimensions of a column's rows."""
    if isinstance(kind, pa.FixedShapeTensorType):
        return len(kind.shape)
    return 1 + _dimensions(kind.value_type) if _is_list(kind) else 0


def _is_list(kind: pa.DataType) -> bool:
    return bool(pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind))


def _flatten(array: Any, name: str) -> tuple[int, Any]:
    """The common length of lists, -1 without rows, and the values of all of them."""
    if pt.is_fixed_size_list(array.type):
        return array.type.list_size, array.flatten()
    if not len(array):
        return -1, array.flatten()
    lengths = np.diff(np.asarray(array.offsets))
    if lengths.min() != lengths.max():
        raise PlanError(
            f"column {name!r} has lists of {lengths.min()} to {lengths.max()} elements, which cannot be cut into parts "
            "of one length: pack() them, or pad them in map_batches after the shuffle"
        )
    return int(lengths[0]), array.flatten()


def _wrap(kind: Any, values: Any, size: int, rows: int) -> Any:
    """Lists of one length, of the same kind of list."""
    if pt.is_fixed_size_list(kind):
        field = kind.value_field.with_type(values.type)
        return pa.FixedSizeListArray.from_arrays(values, type=pa.list_(field, size))
    large = pt.is_large_list(kind)
    offsets = pa.array(np.arange(rows + 1) * max(size, 0), pa.int64() if large else pa.int32())
    make = pa.LargeListArray if large else pa.ListArray
    field = kind.value_field.with_type(values.type)
    return make.from_arrays(offsets, values, type=(pa.large_list if large else pa.list_)(field))


def _take_ranges(values: Any, ranges: Sequence[tuple[int, int]], length: int, rows: int) -> Any:
    """The same ranges of every ``length`` values."""
    if rows == 1 and len(ranges) == 1:
        return values.slice(ranges[0][0], ranges[0][1] - ranges[0][0])
    width = _byte_width(values)
    if width is not None and rows:
        table = np.frombuffer(values.buffers()[1], np.uint8)[values.offset * width :][: rows * length * width]
        table = table.reshape(rows, length, width)
        kept = np.concatenate([table[:, start:stop] for start, stop in ranges], axis=1)
        return pa.Array.from_buffers(
            values.type, kept.shape[0] * kept.shape[1], [None, pa.py_buffer(kept)], null_count=0
        )
    inside = np.concatenate([np.arange(start, stop, dtype=np.int64) for start, stop in ranges])
    at = (np.arange(rows, dtype=np.int64)[:, None] * length + inside).ravel()
    return values.take(pa.array(at))


def _repeat(positions: NDArray[np.int64], rows: int) -> Any:
    """The same positions for each row."""
    if not len(positions):
        # Arrow has no lists of the fixed size 0
        return pa.array([[]] * rows, pa.list_(pa.int64()))
    return pa.FixedSizeListArray.from_arrays(pa.array(np.tile(positions, rows)), len(positions))


def _byte_width(values: Any) -> int | None:
    """The bytes of a value, if values lie side by side and none is null."""
    kind = values.type
    is_plain = pt.is_primitive(kind) and not pt.is_boolean(kind) and not values.null_count
    return int(kind.bit_width // 8) if is_plain else None
