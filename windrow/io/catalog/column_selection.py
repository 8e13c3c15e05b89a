"""Column selection, and the error for unknown column names with suggestions."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

import pyarrow as pa

from windrow.core.errors import PlanError

__all__ = ["make_unknown_column_error", "select_columns"]

_NAMES_SHOWN = 3


def select_columns(schema: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
    """Return the schema of the selected columns, in the given order; all columns for None."""
    if columns is None:
        if not len(schema):
            raise PlanError("the files have no columns: there is nothing to read")
        return schema
    if isinstance(columns, str) or not all(isinstance(name, str) for name in columns):
        raise PlanError(f"columns={columns!r}: give a list of column names")
    if not columns:
        raise PlanError("columns=[] selects nothing: name at least one column, or leave it out for all")
    duplicates = sorted({name for name in columns if list(columns).count(name) > 1})
    if duplicates:
        raise PlanError(f"columns= names {duplicates[0]!r} more than once: name each column once")
    for name in columns:
        if name not in schema.names:
            raise make_unknown_column_error(name, schema.names, "columns=")
    return pa.schema([schema.field(name) for name in columns])


def make_unknown_column_error(name: str, known: Sequence[str], where: str) -> PlanError:
    """Return the error for an unknown column, with the most similar names."""
    by_casefold = {other.casefold(): other for other in reversed(known)}
    near = difflib.get_close_matches(name.casefold(), by_casefold, _NAMES_SHOWN, cutoff=0.5)
    if near:
        nearest = _format_names([by_casefold[other] for other in near])
        return PlanError(f"{where} has no column {name!r}: did you mean {nearest}?")
    more = ", ..." if len(known) > 2 * _NAMES_SHOWN else ""
    return PlanError(
        f"{where} has no column {name!r}: there are {_format_names(known[: 2 * _NAMES_SHOWN])}{more}"
    )


def _format_names(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names)
