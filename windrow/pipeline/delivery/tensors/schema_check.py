"""Checks which columns can become tensors, from the schema and null counts before anything is read."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.core.errors import PlanError
from windrow.core.variable_tensors import is_variable_tensor, tensor_value_type
from windrow.pipeline.delivery.to_numpy import fixed_dtype, fixed_list_values, permutation_of


def tensor_dtype(arrow_type: pa.DataType) -> np.dtype[Any] | None:
    """Return the NumPy dtype of a column's numbers; None if a tensor cannot hold the column."""
    is_list = isinstance(arrow_type, pa.FixedShapeTensorType) or pa.types.is_fixed_size_list(arrow_type)
    if is_list or pa.types.is_dictionary(arrow_type):
        return tensor_dtype(arrow_type.value_type)
    dtype = fixed_dtype(arrow_type)
    return dtype if dtype is not None and dtype.kind in "biuf" else None


def is_ragged(arrow_type: pa.DataType) -> bool:
    """Whether a column holds lists of any length, of what tensors can hold."""
    is_list = pa.types.is_list(arrow_type) or pa.types.is_large_list(arrow_type)
    return is_list and tensor_dtype(arrow_type.value_type) is not None


def is_tensor_list(arrow_type: pa.DataType) -> bool:
    """Whether a column holds tensors of several shapes, which become a list of tensors."""
    return is_variable_tensor(arrow_type) and tensor_dtype(tensor_value_type(arrow_type)) is not None


def tensor_shape(arrow_type: pa.DataType) -> tuple[int, ...]:
    """Return the shape of one row of a column that tensors can hold: () for a number."""
    if isinstance(arrow_type, pa.FixedShapeTensorType):
        return tuple(arrow_type.shape[dimension] for dimension in permutation_of(arrow_type))
    if pa.types.is_fixed_size_list(arrow_type):
        return (arrow_type.list_size, *tensor_shape(arrow_type.value_type))
    return ()


def check_label(label: object) -> None:
    """Raise PlanError unless the label is the name of one column, or None."""
    if label is not None and not isinstance(label, str):
        raise PlanError(
            f"label_column={label!r} must be the name of one column, or None. For several labels, join their "
            "columns into one with map_batches(), or read all columns by name with iter_torch_batches()"
        )


def check_names(names: Iterable[str], schema: pa.Schema, argument: str) -> None:
    """Raise PlanError for columns that do not exist, and suggest the closest names."""
    unknown = [name for name in dict.fromkeys(names) if name not in schema.names]
    if not unknown:
        return
    near = [close for name in unknown for close in difflib.get_close_matches(str(name), schema.names, n=3)]
    hint = f"the columns are {_listed(schema.names)}"
    if near:
        hint = f"did you mean {_listed(dict.fromkeys(near))}?"
    raise PlanError(f"{argument} names columns that do not exist: {_listed(unknown)}; {hint}")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))


def check_tensor_schema(
    schema: pa.Schema,
    null_counts: Mapping[str, int | None],
    selected: Sequence[str] | None = None,
    *,
    lists: bool = False,
    shapes: bool = False,
) -> None:
    """Raise one PlanError that names all columns that tensors cannot hold, and how to fix them.

    ``null_counts`` has None or nothing for a column behind a filter or a transform; ``selected`` lists the
    columns that become tensors, None: all. ``lists``: columns of lists become tensors too. ``shapes``: columns of
    tensors of several shapes become lists of tensors.
    """
    columns = [schema.field(name) for name in (schema.names if selected is None else selected)]
    if lists:
        # row group statistics of a list count the empty ones as nulls; batches are checked
        columns = [field for field in columns if not is_ragged(field.type)]
    if shapes:
        columns = [field for field in columns if not is_tensor_list(field.type)]
    unsupported = [f"{f.name!r} ({f.type})" for f in columns if tensor_dtype(f.type) is None]
    with_nulls = [f for f in columns if null_counts.get(f.name) and tensor_dtype(f.type) is not None]
    if not unsupported and not with_nulls:
        return
    parts = []
    if unsupported:
        parts.append(
            f"tensors cannot hold {', '.join(unsupported)}: leave them out with columns=, "
            "cast them in map_batches (timestamps with .astype('int64')), or convert them in a collate_fn"
        )
    if with_nulls:
        nullable = ", ".join(
            f"{field.name!r} ({_nulls(null_counts[field.name] or 0)})" for field in with_nulls
        )
        fix = _fix_nulls(with_nulls[0].name, with_nulls[0].type)
        parts.append(f"tensors cannot hold nulls, as in {nullable}: {fix}")
    raise PlanError("; ".join(parts))


def _fix_nulls(name: str, kind: pa.DataType) -> str:
    """How to fix nulls of a column: with a call to copy, where one expression does it."""
    dtype = fixed_dtype(kind)
    if dtype is None or dtype.kind not in "bif" or kind == pa.float16():
        return "fill them in map_batches, leave out their rows with filter=, or convert them in a collate_fn"
    value = False if dtype.kind == "b" else 0
    return (
        f"fill them with add_column({name!r}, pc.coalesce(pc.field({name!r}), {value})), where pc is "
        f"pyarrow.compute, leave out their rows with filter(pc.field({name!r}).is_valid()), or convert them in a "
        "collate_fn"
    )


def check_nulls(array: pa.Array, name: str) -> None:
    """Raise PlanError if a column that becomes a tensor contains nulls."""
    count = _count_nulls(array)
    if count:
        raise PlanError(
            f"column {name!r} ({array.type}) holds {_nulls(count)} in {len(array):,} rows, "
            f"and tensors cannot hold nulls: {_fix_nulls(name, array.type)}"
        )


def _nulls(count: int) -> str:
    return "1 null" if count == 1 else f"{count:,} nulls"


def _count_nulls(array: pa.Array) -> int:
    if is_variable_tensor(array.type):
        return int(array.storage.null_count) or _count_nulls(array.storage.field(0))
    if isinstance(array.type, pa.BaseExtensionType):
        return _count_nulls(array.storage)
    if pa.types.is_dictionary(array.type) and array.dictionary.null_count:
        return int(array.dictionary_decode().null_count)
    count = int(array.null_count)
    if not count and pa.types.is_fixed_size_list(array.type):
        return _count_nulls(fixed_list_values(array))
    if not count and (pa.types.is_list(array.type) or pa.types.is_large_list(array.type)):
        return _count_nulls(array.flatten())
    return count
