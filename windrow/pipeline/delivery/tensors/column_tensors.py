"""Converts batches to torch tensors, one per column, for ``iter_torch_batches`` and for functions of ``map_batches``.

A tensor is a view where the batch's memory is mutable, and a copy otherwise. Either way it is writable,
shares no memory with other columns, and keeps its memory alive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.errors import PlanError
from windrow.core.user_functions import function_name, raise_function_error
from windrow.pipeline.delivery.batch_formats import (
    BatchFormat,
    BatchRows,
    check_format,
    convert,
    cut_batches,
    is_single_batch,
    to_numpy,
)
from windrow.pipeline.delivery.tensors.device import Mover, Placement, resolve_placement
from windrow.pipeline.delivery.tensors.ragged import RaggedSpec, list_parts, nest, to_ragged
from windrow.pipeline.delivery.tensors.schema_check import (
    check_names,
    check_nulls,
    check_tensor_schema,
    is_ragged,
    is_tensor_list,
)
from windrow.pipeline.delivery.to_numpy import column_to_numpy, writable_view

if TYPE_CHECKING:
    import torch

# kinds of NumPy types that torch has too
_NUMBERS = "biuf"


class _SeenSchema(NamedTuple):
    """What becomes of the columns of a schema."""

    schema: pa.Schema
    # whether batches have to be converted one by one, not many at once
    is_per_batch: bool
    # the columns that become lists of tensors, and the others
    listed: list[str]
    plain: list[str]


@dataclass(frozen=True)
class TensorSpec:
    """The arguments of ``iter_torch_batches``; raises PlanError if they exclude each other, or PyTorch is missing."""

    dtypes: torch.dtype | Mapping[str, torch.dtype] | None = field(default=None, hash=False)
    device: str | torch.device | None = None
    collate_fn: Callable[[Any], Any] | None = None
    batch_format: BatchFormat = "numpy"
    pin_memory: bool | None = None
    ragged: RaggedSpec = field(default_factory=lambda: RaggedSpec(None))
    placement: Placement = field(init=False, repr=False, compare=False)
    # the schema that came last
    _seen: list[_SeenSchema] = field(init=False, repr=False, compare=False, default_factory=list)

    def __post_init__(self) -> None:
        object.__setattr__(self, "placement", resolve_placement(self.device, self.pin_memory))
        check_format(self.batch_format)
        if self.collate_fn is None:
            if self.batch_format != "numpy":
                raise PlanError(
                    f"batch_format={self.batch_format!r} sets what collate_fn receives, and there is no collate_fn: "
                    "give one, or leave batch_format out"
                )
        elif not callable(self.collate_fn):
            raise PlanError(f"collate_fn={self.collate_fn!r} is not callable: give a function")
        elif self.dtypes is not None:
            raise PlanError("dtypes and collate_fn exclude each other: convert types in the collate_fn")
        if isinstance(self.dtypes, Mapping):
            object.__setattr__(self, "dtypes", dict(self.dtypes))
        _check_dtypes(self.dtypes)

    def check(self, schema: pa.Schema, null_counts: Mapping[str, int | None]) -> None:
        """Raise PlanError, before anything is read, if columns cannot become tensors."""
        if self.collate_fn is None:
            if isinstance(self.dtypes, Mapping):
                check_names(self.dtypes, schema, "dtypes")
            check_tensor_schema(schema, null_counts, lists=True, shapes=True)
            self.ragged.check(schema)

    def dtypes_of(self, names: Iterable[str]) -> dict[str, torch.dtype]:
        """The dtypes that columns are cast to, by name."""
        if isinstance(self.dtypes, Mapping):
            return {name: self.dtypes[name] for name in names if name in self.dtypes}
        return {} if self.dtypes is None else dict.fromkeys(names, self.dtypes)

    def look_at(self, schema: pa.Schema) -> _SeenSchema:
        """What becomes of the columns of a schema; remembered, since all batches have the same one."""
        seen = self._seen[0] if self._seen else None
        if seen is None or not seen.schema.equals(schema):
            seen = self._look_at(schema)
            self._seen[:] = [seen]
        return seen

    def _look_at(self, schema: pa.Schema) -> _SeenSchema:
        listed = [field.name for field in schema if is_tensor_list(field.type)]
        depends = self.ragged.depends_on_batch(schema) or bool(listed)
        return _SeenSchema(
            schema,
            is_per_batch=self.collate_fn is not None or not len(schema) or depends,
            listed=listed,
            plain=[name for name in schema.names if name not in listed],
        )


def _check_dtypes(dtypes: object) -> None:
    import torch

    for dtype in dtypes.values() if isinstance(dtypes, Mapping) else [dtypes]:
        if dtype is not None and not isinstance(dtype, torch.dtype):
            raise PlanError(f"dtypes={dtypes!r} must be a torch.dtype, or a dict of them by column")


def to_tensors(batch: pa.RecordBatch, spec: TensorSpec, mover: Mover | None = None) -> Any:
    """Convert a batch to a dict of tensors, or to the result of the spec's ``collate_fn``, and have it moved."""
    mover = mover or spec.placement.mover()
    if spec.collate_fn is not None:
        return mover.move(_collate(batch, spec.collate_fn, spec.batch_format))
    schema = batch.schema
    seen, names = spec.look_at(schema), schema.names
    listed = seen.listed
    tensors, offsets = column_tensors(batch, seen.plain, spec.ragged)
    dtypes = spec.dtypes_of(names)
    if not offsets and not listed:
        return mover.move(tensors, dtypes)
    found: dict[str, Any] = {}
    for name in names:
        if name in listed:
            found[name] = _tensor_list(batch.column(name), name, dtypes.pop(name, None))
        elif name in offsets:
            # cast here, since a padding value has to be one of the dtype
            cast = tensors[name].to(dtypes.pop(name, tensors[name].dtype))
            found |= to_ragged(name, cast, offsets[name], spec.ragged.format_of(name))
        else:
            found[name] = tensors[name]
    return mover.move(found, dtypes, nest)


def _tensor_list(column: pa.Array, name: str, dtype: torch.dtype | None) -> list[torch.Tensor]:
    """One tensor per row, of its own shape and memory."""
    import torch

    check_nulls(column, name)
    # copies, since two columns can be the same memory, and what Arrow marks as immutable must not be written to
    tensors = [
        torch.from_numpy(np.array(array, order="C")) for array in column_to_numpy(column, writable=False)
    ]
    return tensors if dtype is None else [tensor.to(dtype) for tensor in tensors]


def tensor_batches(span: pa.RecordBatch, rows: BatchRows, spec: TensorSpec, mover: Mover) -> Iterator[Any]:
    """Convert a span of whole batches, and have them moved."""
    if spec.look_at(span.schema).is_per_batch:
        for batch in cut_batches(span, rows):
            yield to_tensors(batch, spec, mover)
        return
    # convert once for many batches: each batch is then only a view
    tensors = to_tensors(span, spec, mover)
    if is_single_batch(span.num_rows, rows):
        # splitting would release and reacquire the GIL for every column
        yield tensors
    else:
        yield from mover.batches(tensors, span.num_rows, rows)


def _collate(batch: pa.RecordBatch, collate_fn: Callable[[Any], Any], batch_format: BatchFormat) -> Any:
    given = convert(batch, batch_format, writable=True)
    try:
        return collate_fn(given)
    except BaseException as exc:
        raise_function_error(exc, f"collate_fn({function_name(collate_fn)})", batch.schema.names)


def column_tensors(
    batch: pa.RecordBatch, names: list[str], ragged: RaggedSpec
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Convert columns by name, keeping their dtypes, in main memory.

    The lists of a column become the rows of a tensor, and have to have one length. Those that ``ragged`` gives a
    format become a tensor of all their values. Returns the tensors, and for such columns where each list begins.
    """
    import torch

    arrays, offsets = column_arrays(batch, names, ragged)
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    return _separate(tensors), {name: torch.from_numpy(bounds) for name, bounds in offsets.items()}


def column_arrays(
    batch: pa.RecordBatch, names: list[str], ragged: RaggedSpec
) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[np.int64]]]:
    """Convert columns to arrays of their dtypes, writable and aligned; see `column_tensors`."""
    everything = names == batch.schema.names
    columns = batch.columns if everything else [batch.column(name) for name in names]
    arrays, offsets = {}, {}
    for name, column in zip(names, columns, strict=True):
        # this loop holds the GIL, so plain memory takes a single view and no further checks
        array = writable_view(column)
        if array is None:
            check_nulls(column, name)
            if is_ragged(column.type):
                array, bounds = list_parts(column)
                if ragged.format_of(name) is None:
                    array = ragged.to_rows(name, array, bounds)
                else:
                    offsets[name] = bounds
            else:
                array = column_to_numpy(column, writable=True)
        # Arrow data from another process can start at any byte
        arrays[name] = array if array.flags.aligned else array.copy()
    return arrays, offsets


def _separate(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copy tensors that start at the address of an earlier one, so that writing to one changes only that one."""
    taken: set[int] = set()
    for name, tensor in tensors.items():
        address = tensor.data_ptr()
        if address in taken and tensor.numel():
            tensors[name] = tensor.clone()
        taken.add(address)
    return tensors


def to_torch(batch: pa.RecordBatch) -> dict[str, Any]:
    """Convert numbers, booleans and tensors to torch; other columns stay NumPy arrays. The tensors own their memory."""
    import torch

    arrays = to_numpy(batch, writable=True)
    return {
        # a copy: what Arrow marks as mutable can be the user's own data
        name: torch.from_numpy(array.copy()) if array.dtype.kind in _NUMBERS else array
        for name, array in arrays.items()
    }
