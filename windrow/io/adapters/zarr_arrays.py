"""The arrays of Zarr stores as a source: ranges of rows along chunks and shards are the blocks; and their reader."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from windrow.core.errors import PlanError, SourceError
from windrow.core.optional_dependencies import require
from windrow.core.source import BlockAddress, CorruptBlockError
from windrow.core.tracebacks import trims_traceback
from windrow.io.adapters.zarr_store import ZarrStore, open_store
from windrow.io.catalog.column_selection import select_columns
from windrow.io.catalog.listed_source import ListedSource, WholeBlockReader
from windrow.io.catalog.listing import check_connection
from windrow.io.catalog.value_sizes import estimate_blocks, fixed_bits, measure_values
from windrow.io.formats.array_columns import (
    ArrayColumn,
    array_type,
    choose_row_step,
    holds_times,
    stored_row_bytes,
)
from windrow.io.storage.filesystems import Paths, connect
from windrow.io.storage.retries import GaveUpError, Retries, is_transient

# the name of the column of a store that is one array
_SINGLE = "data"
# the rows by which the size of text is estimated
_SAMPLED_ROWS = 16
_SHOWN = 12
_CORRUPT = "it is corrupt: restore it, write it again, or skip its block with options(on_error='skip')"


class ZarrLayout(NamedTuple):
    """The columns of a store, and the rows of a block."""

    columns: tuple[ArrayColumn, ...]
    rows: int
    step: int
    digest: str  # of the arrays' metadata


@dataclass(frozen=True)
class ZarrReader(WholeBlockReader):
    """Reads blocks of stores; the locator of a block is (store, digest of its metadata, first row, last row)."""

    columns: tuple[ArrayColumn, ...]
    schema: pa.Schema

    def read(self, address: BlockAddress) -> pa.Table:
        store, digest, first, last = address.locator
        arrays = _open_arrays(store, tuple(sorted({column.path for column in self.columns})))
        if digest != _digest_metadata(arrays):
            raise SourceError(
                f"{address.origin}: the store has changed since it was read (other shapes, types or chunks): read it "
                "again"
            )
        with store.mapped_errors(f"{address.origin}: cannot be read"):
            try:
                return read_rows(arrays, self.columns, first, last).cast(self.schema)
            except Exception as error:
                if _is_unreadable(error):
                    raise
                raise CorruptBlockError(
                    f"{address.origin}: cannot be decoded ({error}); {_CORRUPT}"
                ) from error


def _is_unreadable(error: Exception) -> bool:
    """Whether bytes could not be read or held, rather than decoded."""
    if isinstance(error, (SourceError, GaveUpError, MemoryError, pa.ArrowCapacityError)) or is_transient(
        error
    ):
        return True
    return isinstance(error, OSError) and error.errno is not None


@trims_traceback
def open_zarr(
    paths: Paths,
    *,
    columns: Sequence[str] | None,
    column_paths: tuple[tuple[str, str], ...] | None,
    dimension: str | None,
    filesystem: Any,
    storage_options: Mapping[str, Any] | None,
    target_block_bytes: int,
    retries: Retries,
) -> ListedSource:
    """List the arrays of stores, in the order of the paths, and cut their rows into blocks."""
    require("zarr", "zarr", "read_zarr()")
    connection = connect(paths, filesystem, storage_options)
    check_connection(connection, retries)
    remote = None if connection.opener is None else connection.lister
    stores = [ZarrStore(path, remote, retries) for path in connection.paths]
    layouts = [_lay_out(store, column_paths, dimension, target_block_bytes) for store in stores]
    found = layouts[0].columns
    for store, layout in zip(stores, layouts, strict=True):
        _check_same(stores[0], found, store, layout.columns)
    schema = pa.schema([pa.field(column.name, column.type) for column in found])
    schema = select_columns(schema, columns)
    by_name = {column.name: column for column in found}
    if not all(name in by_name and by_name[name].type == schema.field(name).type for name in schema.names):
        raise PlanError(f"columns={columns!r} must name whole columns of {stores[0].url}")
    reader = ZarrReader(tuple(by_name[name] for name in schema.names), schema)
    paths_read = tuple(sorted({column.path for column in reader.columns}))
    digests = [_digest_metadata(_open_arrays(store, paths_read)) for store in stores]
    ranges = [
        (store, digest, first, min(first + layout.step, layout.rows))
        for store, digest, layout in zip(stores, digests, layouts, strict=True)
        for first in range(0, layout.rows, layout.step)
    ]
    keys = [store.list_keys() for store in stores]
    sizes = [f"{key} {size}" for one in keys for key, size, _ in one]
    versions = [version for one in keys for _, _, version in one]
    rows = np.array([last - first for _, _, first, last in ranges], np.int64)
    named = stores[0].url if len(stores) == 1 else f"{stores[0].url} and {len(stores) - 1:,} more"
    return ListedSource(
        name=f"Zarr({named!r})",
        schema=schema,
        blocks=estimate_blocks(rows, _measure(stores[0], reader.columns, layouts[0].rows), schema),
        block_addresses=tuple(
            BlockAddress(f"{store.url}, rows {first}-{last - 1}", (store, digest, first, last))
            for store, digest, first, last in ranges
        ),
        reader=reader,
        fingerprint=_digest([*(layout.digest for layout in layouts), *sizes]),
        null_counts={field.name: None if holds_times(field.type) else 0 for field in schema},
        block_bytes=target_block_bytes,
        fragments=len(stores),
        reads=tuple(store.path for store in stores),
        stamps=_digest(versions),
    )


def read_rows(arrays: Mapping[str, Any], columns: Sequence[ArrayColumn], first: int, last: int) -> pa.Table:
    """Read some rows of arrays; a structured one once for all of its fields."""
    read = {path: arrays[path][first:last] for path in dict.fromkeys(column.path for column in columns)}
    return pa.table({column.name: column.select(np.asarray(read[column.path])) for column in columns})


def _lay_out(
    store: ZarrStore, paths: tuple[tuple[str, str], ...] | None, dimension: str | None, target_bytes: int
) -> ZarrLayout:
    """Find the columns of a store; a SourceError if one is missing or cannot be read, or their lengths differ."""
    with store.mapped_errors(f"{store.url}: its arrays cannot be listed"):
        known = _find_arrays(store)
    columns: list[ArrayColumn] = []
    for name, path in paths or _default_paths(known, dimension, store):
        columns += _columns(store, known, name, path, fields=paths is None)
    arrays = {path: known[path] for path in dict.fromkeys(column.path for column in columns)}
    if not arrays:
        raise SourceError(f"{store.url} has no arrays to read; it has {_describe(known)}")
    (first, array), *_ = arrays.items()
    for path, other in arrays.items():
        names = _row_dimension(array), _row_dimension(other)
        if other.shape[0] != array.shape[0] or (None not in names and names[0] != names[1]):
            raise SourceError(
                f"{store.url} has {array.shape[0]:,} rows in the array {first!r} and {other.shape[0]:,} in {path!r}"
                f"{_format_dimensions(*names)}: choose arrays that share their first dimension, by its name with "
                f"dimension=, or with columns={{{first!r}: {first!r}, ...}}, from {_describe(known)}"
            )
    chunks = [(_chunk_rows(each), stored_row_bytes(each.dtype, each.shape[1:])) for each in arrays.values()]
    step = choose_row_step(array.shape[0], chunks, target_bytes)
    return ZarrLayout(tuple(columns), int(array.shape[0]), step, _digest_metadata(arrays))


def _find_arrays(store: ZarrStore) -> dict[str, Any]:
    """The arrays of a store by path, sorted; a store that is one array has it at the empty path."""
    root = open_store(store)
    if hasattr(root, "shape"):
        return {"": root}
    return {path: item for path, item in sorted(root.members(max_depth=None)) if hasattr(item, "shape")}


def _default_paths(
    known: Mapping[str, Any], dimension: str | None, store: ZarrStore
) -> list[tuple[str, str]]:
    chosen = known
    if dimension is not None:
        chosen = {path: array for path, array in known.items() if _row_dimension(array) == dimension}
        if not chosen:
            raise PlanError(
                f"dimension={dimension!r}: it is the first one of no array of {store.url}: {_describe(known)}"
            )
    return [(path or _SINGLE, path) for path in chosen]


def _columns(
    store: ZarrStore, known: Mapping[str, Any], name: str, path: str, *, fields: bool
) -> list[ArrayColumn]:
    above, _, field = path.rpartition("/")
    if path not in known and above in known and field in (known[above].dtype.names or ()):
        path = above
    elif path in known:
        field = ""
    else:
        raise SourceError(f"{store.url} has no array {path!r}; it has {_describe(known)}")
    array = known[path]
    if not array.shape:
        raise SourceError(
            f"{store.url} has no rows in the array {path!r}, which is a single value: leave it out with a dict of "
            f"columns= or with dimension=; it has {_describe(known)}"
        )
    # zarr makes another dtype of each access
    dtype = array.dtype
    of_fields = fields and bool(dtype.names)
    try:
        return [
            ArrayColumn(
                f"{name}/{each}" if of_fields else name,
                path,
                each,
                array_type(dtype[each] if each else dtype, array.shape[1:], _leaf_finder(array)),
            )
            for each in (dtype.names if of_fields else (field,))
        ]
    except ValueError as error:
        raise SourceError(f"{store.url} has an array {path!r} that {error}") from error


def _leaf_finder(array: Any) -> Any:
    """How the Arrow type of text and bytes of several lengths is found."""
    stored = getattr(array.metadata, "data_type", None) or getattr(array.metadata, "dtype", None)

    def find_leaf(dtype: np.dtype[Any]) -> pa.DataType | None:
        if dtype.kind == "T" or (dtype.kind == "O" and "UTF8" in type(stored).__name__):
            return pa.string()
        return pa.binary() if dtype.kind == "O" and "Bytes" in type(stored).__name__ else None

    return find_leaf


def _chunk_rows(array: Any) -> int:
    """The rows that are stored in one object: those of a shard, or of a chunk."""
    return int((array.shards or array.chunks)[0])


def _row_dimension(array: Any) -> str | None:
    """The name of an array's first dimension; xarray keeps those of Zarr's version 2 in an attribute."""
    names = getattr(array.metadata, "dimension_names", None) or array.attrs.get("_ARRAY_DIMENSIONS")
    return str(names[0]) if names and names[0] is not None else None


def _format_dimensions(one: str | None, other: str | None) -> str:
    return f" (their first dimensions are {one!r} and {other!r})" if None not in (one, other) else ""


def _describe(arrays: Mapping[str, Any]) -> str:
    shown = [f"{path!r} {tuple(array.shape)} {array.dtype}" for path, array in arrays.items()]
    more = f" and {len(shown) - _SHOWN:,} more" if len(shown) > _SHOWN else ""
    return (", ".join(shown[:_SHOWN]) or "none") + more


def _check_same(
    first: ZarrStore, expected: Sequence[ArrayColumn], store: ZarrStore, found: Sequence[ArrayColumn]
) -> None:
    """Raise a SourceError unless two stores have the same columns."""
    if expected != found:
        differ = next(
            (pair for pair in zip(expected, found, strict=False) if pair[0] != pair[1]),
            (expected[-1], found[-1]),
        )
        raise SourceError(
            f"{store.url} has other columns than {first.url}: {differ[1].name!r} {differ[1].type} where that has "
            f"{differ[0].name!r} {differ[0].type} ({len(found)} and {len(expected)} columns): choose columns that both "
            "have with columns={...}"
        )


@lru_cache(maxsize=64)
def _open_arrays(store: ZarrStore, paths: tuple[str, ...]) -> dict[str, Any]:
    """Open arrays once in a process; a SourceError if one is missing."""
    root = open_store(store)
    try:
        return {path: root[path] if path else root for path in paths}
    except KeyError as error:
        raise SourceError(f"{store.url} has no array {error} any more: read it again") from error


def _digest_metadata(arrays: Mapping[str, Any]) -> str:
    texts = []
    for path, array in arrays.items():
        stored = (array.shape, str(array.dtype), array.chunks, array.shards, array.fill_value)
        codecs = (
            (array.filters, array.serializer, array.compressors) if array.metadata.zarr_format > 2 else ()
        )
        texts.append(f"{path} {stored!r} {codecs!r}")
    return _digest(sorted(texts))


def _digest(lines: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _measure(store: ZarrStore, columns: Sequence[ArrayColumn], rows: int) -> dict[str, float]:
    """The bytes in memory of a value of each column: exact, or the mean of the first rows."""
    varying = [column for column in columns if fixed_bits(column.type) is None]
    sample = None
    if varying and rows:
        arrays = _open_arrays(store, tuple(sorted({column.path for column in varying})))
        with store.mapped_errors(f"{store.url}: its first rows cannot be read", _CORRUPT):
            sample = read_rows(arrays, varying, 0, min(rows, _SAMPLED_ROWS))
    return {column.name: measure_values(column.name, column.type, sample) for column in columns}
