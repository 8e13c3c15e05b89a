"""Columns that a format stores and that cannot be read: an error if they are selected, and none otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from windrow.io.catalog.schemas import MergedSchema, merge_schemas

_WHY = b"windrow.unreadable"


def unreadable_field(name: str, what: str, why: str) -> pa.Field[Any]:
    """Return the field of a column that cannot be read; ``what`` is its type in a word, ``why`` continues "it is".

    Its Arrow type is a union that casts to nothing, so that ``schema=`` cannot make nulls of the column.
    """
    return pa.field(name, pa.dense_union([pa.field(what, pa.null())]), metadata={_WHY: why})


def merge_readable(schemas: Sequence[tuple[str, pa.Schema]]) -> MergedSchema:
    """Merge the schemas of files as `merge_schemas` does; selecting an unreadable column is an error.

    >>> schema = pa.schema([("x", pa.int8()), unreadable_field("y", "pickle", "a pickle, which runs code")])
    >>> merge_readable([("a.mds", schema)]).conflicts["y"]
    "column 'y' in a.mds is a pickle, which runs code: exclude it with columns="
    """
    merged = merge_schemas(schemas)
    unreadable = {
        field.name: f"column {field.name!r} in {path} is {field.metadata[_WHY].decode()}: exclude it with columns="
        for path, schema in reversed(schemas)
        for field in schema
        if _WHY in (field.metadata or {})
    }
    return replace(merged, conflicts={**merged.conflicts, **unreadable})
