"""Integers of JSON that Arrow infers as floats: those beyond 64 bits with a sign, and those among floats.

Arrow rounds them without a word. Here they become ``uint64`` where that holds all of them; others that a float
cannot hold exactly are found. Floats below 2**53 hold every integer, so other data costs a look at the largest value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

__all__ = ["Rounded", "find_rounded", "widen_integers"]

# every integer up to here has a float of its own
_EXACT = 2.0**53
_LONG = re.compile(rb"\d{16}")
_UINT64 = 2**64

Leaf = tuple[str, ...]


class Rounded(NamedTuple):
    """An integer that its column's floats do not hold: its row in the text, its column, and its value."""

    row: int
    column: str
    value: int


def find_rounded(text: pa.Buffer, table: pa.Table, given: Collection[str]) -> Rounded | None:
    r"""Find the first integer that was rounded in a table parsed from ``text``; columns ``given`` may round.

    Examples
    --------
    >>> lines = pa.py_buffer(b'{"x": 0.5}\n{"x": 9007199254740993}')
    >>> find_rounded(lines, pa.table({"x": [0.5, 2.0**53]}), ())
    Rounded(row=1, column='x', value=9007199254740993)
    """
    suspects = _find_suspects(text, table, given)
    if not suspects:
        return None
    for row, record in enumerate(_records(text)):
        for field in suspects:
            for value in _values(record.get(field.name), field.type):
                if isinstance(value, int) and int(float(value)) != value:
                    return Rounded(row, field.name, value)
    return None


def widen_integers(text: pa.Buffer, table: pa.Table, given: Collection[str]) -> pa.Schema:
    """The schema of a table whose types were inferred from ``text``, with ``uint64`` for floats that are integers.

    Examples
    --------
    >>> lines = pa.py_buffer(b'{"x": 12345678901234567890}')
    >>> widen_integers(lines, pa.table({"x": [12345678901234567890.0]}), ()).field("x").type
    DataType(uint64)
    """
    suspects = _find_suspects(text, table, given)
    if not suspects:
        return table.schema
    others: dict[str, set[Leaf]] = {field.name: set() for field in suspects}
    for record in _records(text):
        for field in suspects:
            for leaf, value in _leaves(record.get(field.name), field.type, ()):
                if not isinstance(value, int) or not 0 <= value < _UINT64:
                    others[field.name].add(leaf)
    schema = table.schema
    for field in suspects:
        kind = _widen(field.type, others[field.name], (), _large_leaves(table[field.name]))
        schema = schema.set(schema.get_field_index(field.name), field.with_type(kind))
    return schema


def _find_suspects(text: pa.Buffer, table: pa.Table, given: Collection[str]) -> list[Any]:
    """The fields that hold large floats, if the text has long numbers at all."""
    large = [
        field
        for field in table.schema
        if field.name not in given and _has_floats(field.type) and _large_leaves(table[field.name])
    ]
    return large if large and _LONG.search(text) else []


def _has_floats(kind: pa.DataType) -> bool:
    if pt.is_list(kind):
        return _has_floats(kind.value_type)
    if pt.is_struct(kind):
        return any(_has_floats(kind.field(at).type) for at in range(kind.num_fields))
    return bool(pt.is_float64(kind))


def _large_leaves(column: pa.ChunkedArray) -> set[Leaf]:
    """Where in a column's type there are floats beyond those that hold every integer."""
    return {leaf for chunk in column.chunks for leaf, values in _arrays(chunk, ()) if _is_large(values)}


def _arrays(array: pa.Array, leaf: Leaf) -> Iterator[tuple[Leaf, pa.Array]]:
    if pt.is_list(array.type):
        yield from _arrays(array.flatten(), (*leaf, "[]"))
    elif pt.is_struct(array.type):
        for field, values in zip(array.type, array.flatten(), strict=True):
            yield from _arrays(values, (*leaf, field.name))
    elif pt.is_float64(array.type):
        yield leaf, array


def _is_large(array: pa.Array) -> bool:
    buffer = array.buffers()[1]
    if buffer is None or not len(array):
        return False
    values = np.frombuffer(buffer, np.float64, len(array), 8 * array.offset)
    return bool(values.max() >= _EXACT or values.min() <= -_EXACT)


def _records(text: pa.Buffer) -> Iterator[dict[str, Any]]:
    """The objects of JSON lines; blank lines are no rows."""
    for line in bytes(text).splitlines():
        if line.strip():
            yield json.loads(line)


def _values(value: Any, kind: pa.DataType) -> Iterator[Any]:
    return (found for _, found in _leaves(value, kind, ()))


def _leaves(value: Any, kind: pa.DataType, leaf: Leaf) -> Iterator[tuple[Leaf, Any]]:
    """The numbers of a value that are floats in its type, with their places in the type."""
    if value is None:
        return
    if pt.is_list(kind):
        for inner in value:
            yield from _leaves(inner, kind.value_type, (*leaf, "[]"))
    elif pt.is_struct(kind):
        for field in kind:
            yield from _leaves(value.get(field.name), field.type, (*leaf, field.name))
    elif pt.is_float64(kind):
        yield leaf, value


def _widen(kind: Any, others: set[Leaf], leaf: Leaf, large: set[Leaf]) -> Any:
    if pt.is_list(kind):
        return pa.list_(_widen(kind.value_type, others, (*leaf, "[]"), large))
    if pt.is_struct(kind):
        return pa.struct(
            [field.with_type(_widen(field.type, others, (*leaf, field.name), large)) for field in kind]
        )
    return pa.uint64() if leaf in large and leaf not in others else kind
