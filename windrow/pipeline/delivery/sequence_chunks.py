"""Equal parts of sequences, by number: cutting columns of lists and tensors into them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from numpy.typing import NDArray

from windrow.core.chosen_rows import copy_slice
from windrow.core.errors import PlanError
from windrow.pipeline.delivery.to_numpy import is_list

# in the metadata of a field whose sequences lack parts, those that they have
_METADATA_KEY = b"windrow:chunks"


@dataclass(frozen=True)
class Chunks:
    """Those of the ``count`` equal parts of a sequence that are kept, in this order; errors say ``why`` so many."""

    count: int
    kept: tuple[int, ...]
    why: str = field(default="", compare=False)

    @classmethod
    def of_field(cls, column: pa.Field) -> Chunks | None:
        """What sequences that `cut_column` has marked hold; None: all."""
        found = (column.metadata or {}).get(_METADATA_KEY)
        if found is None:
            return None
        count, *kept = map(int, found.split())
        return cls(count, tuple(kept))

    def ranges(self, size: int, held: Sequence[int]) -> list[tuple[int, int]]:
        """Where they are in a sequence of the parts ``held``, of ``size`` elements each."""
        places = [held.index(part) for part in self.kept]
        return [(place * size, (place + 1) * size) for place in places]

    def positions(self, length: int) -> NDArray[np.int64]:
        """The positions of their elements in a whole sequence of ``length``."""
        ranges = self.ranges(length // self.count, range(self.count))
        return np.concatenate([np.arange(start, stop, dtype=np.int64) for start, stop in ranges])


def cut_column(
    array: Any, field: pa.Field, dim: int, chunks: Chunks, *, marks: bool = False
) -> tuple[Any, pa.Field, int]:
    """Cut the sequences of a column along a dimension.

    Returns the column, its field, and the length of whole sequences, -1 without rows. ``marks``: the field tells what
    is left, for a later call.

    Raises
    ------
    PlanError
        If the sequences cannot be cut.
    """
    before = Chunks.of_field(field)
    held: Sequence[int] = range(chunks.count) if before is None else before.kept
    cut, length = _Cutter(field.name, chunks, held).cut(array, dim)
    metadata = {key: value for key, value in (field.metadata or {}).items() if key != _METADATA_KEY}
    if marks:
        metadata[_METADATA_KEY] = b" ".join(str(number).encode() for number in (chunks.count, *chunks.kept))
    return cut, field.with_type(cut.type).with_metadata(metadata or None), length


def dimensions(kind: Any) -> int:
    """The number of dimensions of a column's rows."""
    if isinstance(kind, pa.FixedShapeTensorType):
        return len(kind.shape)
    return 1 + dimensions(kind.value_type) if is_list(kind) else 0


@dataclass(frozen=True)
class _Cutter:
    name: str
    chunks: Chunks
    held: Sequence[int]

    def cut(self, array: Any, dim: int) -> tuple[Any, int]:
        """Cut lists or tensors along a dimension; returns them and the length of whole sequences."""
        kind = array.type
        if array.null_count:
            raise PlanError(
                f"column {self.name!r} has rows that are null, which have no sequence to cut: fill or filter them"
            )
        if isinstance(kind, pa.FixedShapeTensorType):
            return self._cut_tensors(array, dim)
        length, values = _flatten(array, self.name)
        if dim > 1:
            # the outer lists keep their length
            inner, own = self.cut(values, dim - 1)
            return _wrap(kind, inner, length, len(array)), own
        size, whole = self._measure(length)
        if self.is_done:
            return array, whole
        ranges = self.chunks.ranges(size, self.held)
        kept = _take_ranges(values, ranges, max(length, 0), len(array))
        return _wrap(kind, kept, size * len(ranges), len(array)), whole

    def _cut_tensors(self, array: Any, dim: int) -> tuple[Any, int]:
        kind = array.type
        if kind.permutation is not None and list(kind.permutation) != sorted(kind.permutation):
            raise PlanError(
                f"column {self.name!r} of type {kind}: sequences of permuted tensors cannot be cut; store them as they "
                "lie"
            )
        shape = list(kind.shape)
        length = shape[dim - 1]
        size, whole = self._measure(length)
        if self.is_done:
            return array, whole
        ranges = self.chunks.ranges(size, self.held)
        outer = math.prod(shape[: dim - 1])
        inner = math.prod(shape[dim:])
        values = array.storage.flatten()
        scaled = [(start * inner, stop * inner) for start, stop in ranges]
        kept = _take_ranges(values, scaled, length * inner, len(array) * outer)
        shape[dim - 1] = size * len(ranges)
        cut = pa.fixed_shape_tensor(kind.value_type, shape, dim_names=kind.dim_names)
        storage = pa.FixedSizeListArray.from_arrays(kept, math.prod(shape))
        return pa.ExtensionArray.from_storage(cut, storage), whole

    @property
    def is_done(self) -> bool:
        """Whether the sequences hold just what is kept."""
        return tuple(self.held) == self.chunks.kept

    def _measure(self, length: int) -> tuple[int, int]:
        """The elements of a part, and of a whole sequence, whose held parts have ``length``."""
        if length < 0:
            return 0, length
        if length % len(self.held):
            parts = self.chunks.count
            raise PlanError(
                f"column {self.name!r}: sequences of {length} elements cannot be cut into {parts} equal parts"
                f"{self.chunks.why}: make their length a multiple of {parts}, by pack() or padding"
            )
        size = length // len(self.held)
        return size, size * self.chunks.count


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
    field = kind.value_field.with_type(values.type)
    if pt.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(values, type=pa.list_(field, size))
    offsets = np.arange(rows + 1) * max(size, 0)
    if pt.is_large_list(kind):
        return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), values, type=pa.large_list(field))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values, type=pa.list_(field))


def _take_ranges(values: Any, ranges: Sequence[tuple[int, int]], length: int, rows: int) -> Any:
    """The same ranges of every ``length`` values."""
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
    if values.offset:
        # a copy without offsets: Arrow 26 ignores those of fixed-size lists of fixed-size lists, and takes other values
        values = copy_slice(values)
    return values.take(pa.array(at))


def _byte_width(values: Any) -> int | None:
    """The bytes of a value, if values lie side by side and none is null."""
    kind = values.type
    is_plain = pt.is_primitive(kind) and not pt.is_boolean(kind) and not values.null_count
    return int(kind.bit_width // 8) if is_plain else None
