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


class _MalformedError(ValueError):
    """The line is not what the parser took it for."""


def has_text(kind: pa.DataType) -> bool:
    """Whether a type is a string, or has one within.

    Examples
    --------
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

    Examples
    --------
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
