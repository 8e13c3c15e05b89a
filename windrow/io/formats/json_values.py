"""Values of JSON that Arrow infers as other types: rounded integers, and lists, objects and numbers among strings.

Arrow rounds integers beyond 64 bits, and those among floats, without a word. Here they become ``uint64`` where that
holds all of them; others that a float cannot hold exactly are found. Floats below 2**53 hold every integer, so other
data costs a look at the largest value.

Arrow's parser wants one kind of value for each field. So lines in which a field of strings holds a list, an object or
a number are rewritten before they are parsed: in place of such a value stands a string with its text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from windrow.io.catalog.value_sizes import child_types

# every integer up to here has a float of its own
_EXACT = 2.0**53
_LONG = re.compile(rb"\d{16}")
_UINT64 = 2**64

Leaf = tuple[str, ...]
# without a choice at each character, which would take ten times as long
_STRING = r'"[^"\\]*(?:\\.[^"\\]*)*"'
_KEY = re.compile(rf"({_STRING})\s*:\s*")
_PLAIN = re.compile(rf'{_STRING}|[^\s,\]}}\[{{":]+')
_STRUCTURE = re.compile(rf"{_STRING}|[\[\]{{}}]")
_OPENING = re.compile(r"[\[{]\s*")
_BETWEEN = re.compile(r"\s*([,\]}])\s*")
_TEXT = "text"
# what a type has of text: itself, what its fields have by name, or, in a list, what its values have
_Plan = str | dict[str, Any] | list[Any] | None
_Edits = list[tuple[int, int, str]]


class Rounded(NamedTuple):
    """An integer that its column's floats do not hold: its row in the text, its column, and its value."""

    row: int
    column: str
    value: int


def find_rounded(text: pa.Buffer, table: pa.Table, given: Collection[str]) -> Rounded | None:
    r"""Find the first integer that was rounded in a table parsed from ``text``; columns ``given`` may round.

    >>> lines = pa.py_buffer(b'{"x": 0.5}\n{"x": 9007199254740993}')
    >>> find_rounded(lines, pa.table({"x": [0.5, 2.0**53]}), ())
    Rounded(row=1, column='x', value=9007199254740993)
    """
    suspects = _find_suspects(text, table, given)
    if not suspects:
        return None
    for row, record in enumerate(_records(text)):
        for field in suspects:
            for _, value in _leaves(record.get(field.name), field.type, ()):
                if isinstance(value, int) and not _has_float(value):
                    return Rounded(row, field.name, value)
    return None


def _has_float(value: int) -> bool:
    try:
        return int(float(value)) == value
    except OverflowError:
        return False


def widen_integers(text: pa.Buffer, table: pa.Table, given: Collection[str]) -> pa.Schema:
    """The schema of a table whose types were inferred from ``text``, with ``uint64`` for floats that are integers.

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
        return any(map(_has_floats, child_types(kind)))
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


class _MalformedError(ValueError):
    """The line is not what the parser took it for."""


def has_text(kind: pa.DataType) -> bool:
    """Whether a type is a string, or has one within.

    >>> has_text(pa.list_(pa.struct([("content", pa.string())]))), has_text(pa.int64())
    (True, False)
    """
    return _make_plan(kind) is not None


def _make_plan(kind: pa.DataType) -> _Plan:
    if pt.is_string(kind) or pt.is_large_string(kind):
        return _TEXT
    if pt.is_list(kind) or pt.is_large_list(kind):
        inner = _make_plan(kind.value_type)
        return None if inner is None else [inner]
    if pt.is_struct(kind):
        return _plan_fields({field.name: field.type for field in kind}) or None
    return None


def _plan_fields(types: Mapping[str, pa.DataType]) -> dict[str, Any]:
    plans = {name: _make_plan(kind) for name, kind in types.items()}
    return {name: plan for name, plan in plans.items() if plan is not None}


def quote_values(text: pa.Buffer, types: Mapping[str, pa.DataType]) -> pa.Buffer:
    r"""Rewrite JSON lines so that the fields that are strings in ``types`` hold strings; null stays null.

    Lines that are not JSON are left as they are.

    >>> lines = pa.py_buffer(b'{"c": "a"}\n{"c": [1,  {"d": null}]}\n')
    >>> print(quote_values(lines, {"c": pa.string()}).to_pybytes().decode(), end="")
    {"c": "a"}
    {"c": "[1,  {\"d\": null}]"}
    """
    plan = _plan_fields(types)
    return pa.py_buffer(
        "\n".join(_quote_line(line, plan) for line in bytes(text).decode().split("\n")).encode()
    )


def _quote_line(line: str, plan: dict[str, Any]) -> str:
    edits: _Edits = []
    try:
        # most lines of most files need no change, and are found by the parser in C
        if not line.strip() or _fits(json.loads(line), plan):
            return line
        _walk(line, len(line) - len(line.lstrip()), plan, edits)
    except (ValueError, RecursionError):
        return line
    parts, at = [], 0
    for start, stop, replacement in edits:
        parts += [line[at:start], replacement]
        at = stop
    return "".join([*parts, line[at:]])


def _fits(value: Any, plan: _Plan) -> bool:
    """Whether the fields that shall be text are strings or null."""
    if plan is None or value is None:
        return True
    if isinstance(plan, str):
        return isinstance(value, str)
    if isinstance(plan, list):
        return not isinstance(value, list) or all(_fits(inner, plan[0]) for inner in value)
    return not isinstance(value, dict) or all(_fits(value.get(name), inner) for name, inner in plan.items())


def _walk(line: str, at: int, plan: _Plan, edits: _Edits) -> int:
    """Find the end of the value at ``at`` in a line of JSON, and note what has to become a string."""
    first = line[at]
    if plan is None or first == '"':
        return _skip_value(line, at)
    if isinstance(plan, str):
        end = _skip_value(line, at)
        if line[at:end] != "null":
            edits.append((at, end, json.dumps(line[at:end], ensure_ascii=False)))
        return end
    if first != ("{" if isinstance(plan, dict) else "["):
        return _skip_value(line, at)
    at = _match(_OPENING, line, at).end()
    if line[at] in "]}":
        return at + 1
    while True:
        inner = plan[0] if isinstance(plan, list) else None
        if isinstance(plan, dict):
            key = _match(_KEY, line, at)
            name, at = key[1], key.end()
            inner = plan.get(json.loads(name) if "\\" in name else name[1:-1])
        between = _match(_BETWEEN, line, _walk(line, at, inner, edits))
        if between[1] != ",":
            return between.end(1)
        at = between.end()


def _skip_value(line: str, at: int) -> int:
    if line[at] not in "[{":
        return _match(_PLAIN, line, at).end()
    depth = 0
    for token in _STRUCTURE.finditer(line, at):
        mark = token[0]
        if mark[0] != '"':
            depth += 1 if mark in "[{" else -1
            if not depth:
                return token.end()
    raise _MalformedError


def _match(pattern: re.Pattern[str], line: str, at: int) -> re.Match[str]:
    found = pattern.match(line, at)
    if found is None:
        raise _MalformedError
    return found
