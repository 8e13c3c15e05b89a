"""Types of columns in files that declare none: those that users pass, and one type for all that were inferred.

Numbers in text have no declared width, so more types unify than between typed files:

- everything that ``windrow.io.catalog.schemas`` unifies;
- integers and floats: ``double``;
- signed and unsigned integers of 64 bits: ``uint64``, where a negative value is an error;
- dates and timestamps without a time zone: timestamps;
- structs with different fields: the union of the fields;
- strings and ``binary``: ``binary``;
- otherwise, where every value can be read as text: ``string``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from windrow.core.errors import PlanError, SourceError
from windrow.core.variable_tensors import is_variable_tensor, tensor_ndim, tensor_value_type, variable_tensor
from windrow.io.catalog.schemas import MergedSchema, Unify, merge_schemas, unify_structs, unify_types


def check_dtypes(
    dtypes: Any, argument: str = "dtypes", parse: Callable[[pa.DataType], object] | None = None
) -> dict[str, pa.DataType] | None:
    """Convert a mapping or Arrow schema to types by column; errors name ``argument``.

    ``parse`` parses a minimal input as a type, and raises ``ArrowNotImplementedError`` if the format does
    not support it.

    >>> check_dtypes({"x": pa.float32(), "y": np.int8, "z": "string"})
    {'x': DataType(float), 'y': DataType(int8), 'z': DataType(string)}
    """
    if dtypes is None:
        return None
    if isinstance(dtypes, pa.Schema):
        dtypes = {field.name: field.type for field in dtypes}
    if not isinstance(dtypes, Mapping):
        raise PlanError(
            f"{argument}= is a {type(dtypes).__name__}: give a dict of types by column, or a schema"
        )
    types = {name: _as_type(name, kind, argument) for name, kind in dtypes.items()}
    if parse is not None:
        for name, kind in types.items():
            _check_parsed(name, kind, argument, parse)
    return types


def type_names(dtypes: Mapping[str, pa.DataType] | None) -> dict[str, str]:
    """Types by column as text, for the options that manifests save."""
    return {name: str(kind) for name, kind in (dtypes or {}).items()}


def _check_parsed(
    name: str, kind: pa.DataType, argument: str, parse: Callable[[pa.DataType], object]
) -> None:
    try:
        parse(kind)
    except pa.ArrowNotImplementedError as error:
        raise PlanError(
            f"{argument}= gives {kind} for {name!r}: {error}; give a supported type (text as pa.string(), lists of "
            "JSON as pa.list_ without a size), and cast after reading, in map_batches"
        ) from error


def _as_type(name: str, kind: Any, argument: str) -> pa.DataType:
    if isinstance(kind, pa.DataType):
        return kind
    try:
        return pa.type_for_alias(kind) if isinstance(kind, str) else pa.from_numpy_dtype(np.dtype(kind))
    except (TypeError, ValueError, pa.ArrowException) as error:
        raise PlanError(f"{argument}= gives {kind!r} for {name!r}: give a type like pa.float32()") from error


def unify_inferred(
    schemas: Sequence[tuple[str, pa.Schema]], widen: Unify, *, fix: str, conflict_fix: str | None = None
) -> MergedSchema:
    """Merge the schemas of files, given as (path, inferred schema); files without columns are ignored.

    ``fix`` is the advice for the error when all files are empty: how to declare the columns. ``conflict_fix`` is
    that for a column whose types do not unify, if not the one of typed files.
    """
    known = [(path, schema) for path, schema in schemas if len(schema)]
    if not known:
        raise SourceError(
            f"{schemas[0][0]} is empty, as all files are, so the columns cannot be inferred: "
            f"exclude these files, or {fix}"
        )
    return merge_schemas(known, widen) if conflict_fix is None else merge_schemas(known, widen, conflict_fix)


def widen_text(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """The common type of two inferred types, in formats where every value can be read as text.

    >>> widen_text(pa.int64(), pa.float64()), widen_text(pa.bool_(), pa.int64())
    (DataType(double), DataType(string))
    """
    known = _widen(left, right)
    if known is not None:
        return known
    return pa.binary() if pa.binary() in (left, right) else pa.string()


def widen_json(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """The common type of two inferred types in JSON, which distinguishes numbers, strings and objects."""
    known = _widen(left, right)
    if known is not None:
        return known
    texts = [pt.is_timestamp(kind) or pt.is_date(kind) or pt.is_string(kind) for kind in (left, right)]
    if all(texts):
        return pa.string()
    if pt.is_list(left) and pt.is_list(right):
        inner = widen_json(left.value_type, right.value_type)
        return None if inner is None else pa.list_(inner)
    if pt.is_struct(left) and pt.is_struct(right):
        return unify_structs(left, right, widen_json)
    return None


def _widen(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    if pt.is_dictionary(left) and pt.is_dictionary(right):
        return unify_types(left, right)
    numbers = [pt.is_integer(kind) or pt.is_floating(kind) for kind in (left, right)]
    if all(numbers) and pt.is_integer(left) != pt.is_integer(right):
        return pa.float64()
    if {left, right} == {pa.int64(), pa.uint64()}:
        return pa.uint64()
    days, times = ({left, right} & {pa.date32()}), [kind for kind in (left, right) if pt.is_timestamp(kind)]
    if days and times and times[0].tz is None:
        return times[0]
    return unify_types(left, right)


def widen_samples(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """The common type of members of samples: those of JSON, and tensors of several shapes.

    >>> shapes = ((4, 6, 3), (5, 6, 3))
    >>> widen_samples(*(pa.fixed_shape_tensor(pa.uint8(), shape) for shape in shapes))
    VariableShapeTensorType(value_type=uint8, ndim=3)
    """
    dims = [_tensor_dims(kind) for kind in (left, right)]
    if left != right and dims[0] is not None and dims[0] == dims[1]:
        return variable_tensor(*dims[0])
    return widen_json(left, right)


def _tensor_dims(kind: Any) -> tuple[pa.DataType, int] | None:
    """The value type and number of dimensions of a type of tensors."""
    if is_variable_tensor(kind):
        return tensor_value_type(kind), tensor_ndim(kind)
    return (kind.value_type, len(kind.shape)) if isinstance(kind, pa.FixedShapeTensorType) else None


def widen_features(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """The common type of a feature that has single values in some files and lists in others.

    >>> widen_features(pa.int64(), pa.list_(pa.int64()))
    ListType(list<item: int64>)
    """
    for one, other in ((left, right), (right, left)):
        if pt.is_list(one) and one.value_type == other:
            return one
    return unify_types(left, right)
