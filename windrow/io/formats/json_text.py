"""JSON values as text: what a field of strings holds in rows where its value is a list, an object or a number.

Arrow's parser wants one kind of value for each field. So the lines are rewritten before they are parsed: in place
of such a value stands a string with its text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

__all__ = ["has_text", "quote_values"]

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_STRUCTURE = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]')
_SCALAR = re.compile(r"[^\s,\]}\[{\":]+")
_BLANK = re.compile(r"\s*")


class _MalformedError(ValueError):
    """The text is not JSON; the parser explains why."""


def has_text(kind: pa.DataType) -> bool:
    """Whether a type is a string, or has one within.

    Examples
    --------
    >>> has_text(pa.list_(pa.struct([("content", pa.string())]))), has_text(pa.int64())
    (True, False)
    """
    if _is_list(kind):
        return has_text(kind.value_type)
    if pt.is_struct(kind):
        return any(has_text(kind.field(at).type) for at in range(kind.num_fields))
    return _is_text(kind)


def quote_values(text: pa.Buffer, types: Mapping[str, pa.DataType]) -> pa.Buffer:
    r"""Rewrite JSON lines so that the fields that are strings in ``types`` hold strings; null stays null.

    Lines that are not JSON are left as they are.

    Examples
    --------
    >>> lines = pa.py_buffer(b'{"c": "a"}\n{"c": [1,  {"d": null}]}\n')
    >>> print(quote_values(lines, {"c": pa.string()}).to_pybytes().decode(), end="")
    {"c": "a"}
    {"c": "[1,  {\"d\": null}]"}
    """
    wanted = {name: kind for name, kind in types.items() if has_text(kind)}
    return pa.py_buffer(
        "\n".join(_quote_line(line, wanted) for line in bytes(text).decode().split("\n")).encode()
    )


def _quote_line(line: str, types: Mapping[str, pa.DataType]) -> str:
    edits: list[tuple[int, int, str]] = []
    try:
        start = _skip_blank(line, 0)
        if not line.startswith("{", start):
            return line
        _walk_object(line, start, types, edits)
    except (_MalformedError, RecursionError):
        return line
    if not edits:
        return line
    parts, at = [], 0
    for start, stop, replacement in edits:
        parts += [line[at:start], replacement]
        at = stop
    return "".join([*parts, line[at:]])


def _walk(line: str, at: int, kind: pa.DataType | None, edits: list[tuple[int, int, str]]) -> int:
    """Find the end of the value at ``at``, and note what has to become a string."""
    first = line[at : at + 1]
    if kind is None or first == '"':
        return _skip_value(line, at)
    if _is_text(kind):
        end = _skip_value(line, at)
        raw = line[at:end]
        if raw != "null":
            _check(raw)
            edits.append((at, end, json.dumps(raw, ensure_ascii=False)))
        return end
    if pt.is_struct(kind) and first == "{":
        fields = {kind.field(place).name: kind.field(place).type for place in range(kind.num_fields)}
        return _walk_object(line, at, fields, edits)
    if _is_list(kind) and first == "[":
        return _walk_list(line, at, kind.value_type, edits)
    return _skip_value(line, at)


def _walk_object(
    line: str, at: int, types: Mapping[str, pa.DataType], edits: list[tuple[int, int, str]]
) -> int:
    at = _skip_blank(line, at + 1)
    if line.startswith("}", at):
        return at + 1
    while True:
        key = _STRING.match(line, at)
        if key is None:
            raise _MalformedError
        name = key[0][1:-1] if "\\" not in key[0] else _check(key[0])
        at = _skip_blank(line, key.end())
        if not line.startswith(":", at):
            raise _MalformedError
        kind = types.get(name)
        at = _skip_blank(line, at + 1)
        at = _skip_blank(line, _walk(line, at, kind if kind is None or has_text(kind) else None, edits))
        if line.startswith("}", at):
            return at + 1
        at = _skip_comma(line, at)


def _walk_list(line: str, at: int, kind: pa.DataType, edits: list[tuple[int, int, str]]) -> int:
    at = _skip_blank(line, at + 1)
    if line.startswith("]", at):
        return at + 1
    while True:
        at = _skip_blank(line, _walk(line, at, kind, edits))
        if line.startswith("]", at):
            return at + 1
        at = _skip_comma(line, at)


def _skip_value(line: str, at: int) -> int:
    first = line[at : at + 1]
    if first == '"' or first not in ("[", "{"):
        found = (_STRING if first == '"' else _SCALAR).match(line, at)
        if found is None:
            raise _MalformedError
        return found.end()
    depth = 0
    for token in _STRUCTURE.finditer(line, at):
        mark = token[0]
        depth += (mark in ("[", "{")) - (mark in ("]", "}"))
        if not depth:
            return token.end()
    raise _MalformedError


def _skip_blank(line: str, at: int) -> int:
    found = _BLANK.match(line, at)
    return at if found is None else found.end()


def _skip_comma(line: str, at: int) -> int:
    if not line.startswith(",", at):
        raise _MalformedError
    return _skip_blank(line, at + 1)


def _check(raw: str) -> Any:
    """Parse a value, so that no text that is not JSON passes for one."""
    try:
        return json.loads(raw)
    except ValueError as error:
        raise _MalformedError from error


def _is_text(kind: pa.DataType) -> bool:
    return bool(pt.is_string(kind) or pt.is_large_string(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pt.is_list(kind) or pt.is_large_list(kind))
