"""One schema for files whose types were inferred from text: what one type can hold of both.

Numbers in text have no width, so more unifies than between files that state their types:

- what ``windrow.io.catalog.schemas`` unifies;
- integers with floats: ``double``;
- days with timestamps of no zone: timestamps;
- structs of different fields: all of them;
- strings with ``binary``: ``binary``;
- otherwise, where any value can be read as text: ``string``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.types as pt

from windrow.core.errors import SourceError
from windrow.io.catalog.schemas import unify_schemas, unify_types

__all__ = ["unify_inferred", "widen_features", "widen_json", "widen_text"]

Widen = Callable[[pa.DataType, pa.DataType], "pa.DataType | None"]


def unify_inferred(
    schemas: Sequence[tuple[str, pa.Schema]], widen: Widen, *, fill: bool, fix: str
) -> pa.Schema:
    """One schema for files given as (path, inferred schema); those without columns are empty.

    ``fill``: a column may be missing in some files, and is null there. ``fix``: how a user names
    the columns of files that are empty.

    Raises
    ------
    SourceError
        Naming file, column and types, where they do not unify, or all files are empty.
    """
    told = [(path, schema) for path, schema in schemas if len(schema)]
    if not told:
        raise SourceError(
            f"{schemas[0][0]} is empty, as all files are: nothing tells what columns there are; "
            f"leave them out, or {fix}"
        )
    if fill:
        everything = {field.name: field for _, schema in told for field in schema}
        told = [(path, _filled(schema, list(everything))) for path, schema in told]
    return unify_schemas(told, widen)


def _filled(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    missing = [pa.field(name, pa.null()) for name in names if name not in schema.names]
    return pa.schema([*schema, *missing])


def widen_text(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """The type for values that were inferred as either, where anything can be read as text.

    Examples
    --------
    >>> import pyarrow as pa
    >>> widen_text(pa.int64(), pa.float64()), widen_text(pa.bool_(), pa.int64())
    (DataType(double), DataType(string))
    """
    known = _widen(left, right)
    if known is not None:
        return known
    return pa.binary() if pa.binary() in (left, right) else pa.string()


def widen_json(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """The type for values that were inferred as either, where JSON tells numbers, strings and objects apart."""
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
        return _join_structs(left, right)
    return None


def _widen(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    if pt.is_dictionary(left) and pt.is_dictionary(right):
        return unify_types(left, right)
    numbers = [pt.is_integer(kind) or pt.is_floating(kind) for kind in (left, right)]
    if all(numbers) and pt.is_integer(left) != pt.is_integer(right):
        return pa.float64()
    days, times = ({left, right} & {pa.date32()}), [kind for kind in (left, right) if pt.is_timestamp(kind)]
    if days and times and times[0].tz is None:
        return times[0]
    return unify_types(left, right)


def _join_structs(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    names = dict.fromkeys(kind.field(at).name for kind in (left, right) for at in range(kind.num_fields))
    joined = {name: _field_type(left, right, name) for name in names}
    if None in joined.values():
        return None
    return pa.struct(list(joined.items()))


def _field_type(left: pa.DataType, right: pa.DataType, name: str) -> pa.DataType | None:
    places = [kind.get_field_index(name) for kind in (left, right)]
    kinds = [kind.field(at).type for kind, at in zip((left, right), places, strict=True) if at >= 0]
    return kinds[0] if len(kinds) == 1 else widen_json(kinds[0], kinds[1])


def widen_features(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """The type for features that had one value in some files, and several in others.

    Examples
    --------
    >>> import pyarrow as pa
    >>> widen_features(pa.int64(), pa.list_(pa.int64()))
    ListType(list<item: int64>)
    """
    for one, other in ((left, right), (right, left)):
        if pt.is_list(one) and one.value_type == other:
            return one
    return unify_types(left, right)
