"""In words: which columns of a dataset some files store in another type, or lack."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
import pyarrow as pa

from windrow.io.catalog.column_selection import restrict_type
from windrow.io.catalog.manifest import Manifest

__all__ = ["describe_changes"]


def describe_changes(manifest: Manifest, schema: pa.Schema, partitions: Collection[str]) -> tuple[str, ...]:
    """One text for each column that is cast or filled, such as ``x: int32 in 2 of 9 files, read as double``."""
    numbers = manifest.schema_numbers
    if numbers is None:
        numbers = np.zeros(manifest.fragments, np.int64)
    counts = np.bincount(numbers, minlength=1).tolist()
    schemas = manifest.schemas or (manifest.schema,)
    stored = [field for field in schema if field.name not in partitions]
    found = ((field.name, list(_describe(field, schemas, counts, manifest, numbers))) for field in stored)
    return tuple(f"{name}: {', '.join(texts)}" for name, texts in found if texts)


def _describe(
    field: pa.Field,
    schemas: tuple[pa.Schema, ...],
    counts: list[int],
    manifest: Manifest,
    numbers: np.ndarray,
) -> Iterator[str]:
    kinds = [_stored_type(schema, field) for schema in schemas]
    for kind in dict.fromkeys(kinds):
        if kind is not None and kind != field.type:
            files = sum(count for known, count in zip(kinds, counts, strict=True) if known == kind)
            yield f"{kind} in {_of_files(files, manifest)}, read as {field.type}"
    lacking = [number for number, kind in enumerate(kinds) if kind is None and counts[number]]
    if lacking:
        files = sum(counts[number] for number in lacking)
        first = manifest.path(int(np.isin(numbers, lacking).argmax()))
        yield f"null in {_of_files(files, manifest)} (first: {first})"


def _stored_type(schema: pa.Schema, field: pa.Field) -> pa.DataType | None:
    place = schema.get_field_index(field.name)
    return restrict_type(schema.field(place).type, field.type) if place >= 0 else None


def _of_files(files: int, manifest: Manifest) -> str:
    if files == manifest.fragments:
        return "all files" if files > 1 else "the file"
    return f"{files:,} of {manifest.fragments:,} files"
