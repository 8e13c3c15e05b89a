"""Stages a stream of tables as Arrow files of one block each, so that blocks can be read in any order."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.core.chosen_rows import take_rows
from windrow.core.errors import SourceError
from windrow.core.offsets import check_layout
from windrow.core.source import BlockAddress
from windrow.core.tracebacks import trims_traceback
from windrow.io.adapters.temporary_folder import LeasedFolder
from windrow.io.catalog.content_digest import digest_table
from windrow.io.catalog.listed_source import ListedSource, WholeBlockReader
from windrow.io.catalog.safe_casts import conform_table
from windrow.io.catalog.value_sizes import count_nulls, fixed_bits, make_block_table, weigh_table
from windrow.io.storage.error_causes import find_cause, shows_corruption

_FIX = "give schema= with all columns and the types that hold every value, or leave others out"


@dataclass(frozen=True, eq=False)
class StagedReader(WholeBlockReader):
    """Maps staged blocks into memory; a block's locator is its file name."""

    # the `LeasedFolder` with the files or, in another process, what it was pickled as
    folder: Any

    def read(self, address: BlockAddress) -> pa.Table:
        """Read one block without copying it; a SourceError if its file is missing or corrupt."""
        path = Path(self.folder.path, address.locator)
        try:
            with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as reader:
                table = reader.read_all()
            check_layout(table)
            return table
        except FileNotFoundError as error:
            raise SourceError(
                f"{address.origin}: {path} is missing. Staged rows last as long as the process that made the dataset; "
                "for other machines give a cache_dir= that all of them see"
            ) from error
        except (OSError, pa.ArrowInvalid) as error:
            cause = find_cause(error, local=True, filters=False)
            fix = "it is corrupt: make the dataset again" if shows_corruption(error) else cause.fix
            raise SourceError(f"{address.origin}: {path}: {cause.what} ({error}); {fix}") from error


@trims_traceback
def stage_tables(
    tables: Iterable[pa.Table],
    name: str,
    target_block_bytes: int,
    cache_dir: str | os.PathLike[str] | None,
    rows: int | None = None,
) -> ListedSource:
    """Write tables to files of one block each, in a folder that lasts at most as long as this process.

    The first table defines the schema. ``rows`` is the required number of rows; None: any number.
    """
    try:
        folder = LeasedFolder(cache_dir)
    except OSError as error:
        raise SourceError(
            f"{name}: its rows cannot be staged in cache_dir={os.fspath(cache_dir or tempfile.gettempdir())!r} "
            f"({error}); give a writable folder"
        ) from error
    written: list[_Written] = []
    for block in _cut(_conform(_check_row_count(tables, name, rows), name), target_block_bytes):
        written.append(_write(block, folder.path, len(written), name))
    if not written:
        raise SourceError(f"{name} yielded no rows, so its columns are unknown; pass schema=")
    nonempty = [block for block in written if block.rows]
    return _source(written[0].schema, nonempty, folder, name, target_block_bytes)


@dataclass(frozen=True, eq=False)
class _Written:
    """Metadata of a written block."""

    schema: pa.Schema
    rows: int
    size_bytes: int
    nulls: dict[str, int]
    digest: str
    file: str


def _write(block: pa.Table, folder: str, number: int, name: str) -> _Written:
    file = f"block-{number:06d}.arrow"
    try:
        with (
            pa.OSFile(str(Path(folder, file)), "wb") as sink,
            pa.ipc.new_stream(sink, block.schema) as writer,
        ):
            writer.write_table(block)
    except OSError as error:
        raise SourceError(
            f"{name}: its rows cannot be staged in {folder} ({error}); give a cache_dir= with enough space"
        ) from error
    size = weigh_table(block)
    return _Written(block.schema, block.num_rows, size, count_nulls(block), digest_table(block), file)


def _source(
    schema: pa.Schema, written: list[_Written], folder: LeasedFolder, name: str, target_bytes: int
) -> ListedSource:
    ends = list(accumulate(block.rows for block in written))
    digest = hashlib.sha256("\n".join(block.digest for block in written).encode())
    rows = np.array([block.rows for block in written], np.int64)
    sizes = np.array([block.size_bytes for block in written], np.int64)
    return ListedSource(
        name=name,
        schema=schema,
        blocks=make_block_table(rows, sizes, schema),
        block_addresses=tuple(
            BlockAddress(f"{name}, rows {end - block.rows}-{end - 1}", block.file)
            for end, block in zip(ends, written, strict=True)
        ),
        reader=StagedReader(folder),
        fingerprint=digest.hexdigest(),
        null_counts={field: sum(block.nulls[field] for block in written) for field in schema.names},
        block_bytes=target_bytes,
        fragments=max(1, len(written)),
        reads=(folder.path,),
    )


def _check_row_count(tables: Iterable[pa.Table], name: str, rows: int | None) -> Iterator[pa.Table]:
    """Yield the tables; raise if they have more or fewer rows than ``rows``."""
    seen = 0
    for table in tables:
        seen += table.num_rows
        if rows is not None and seen > rows:
            raise SourceError(f"{name} yielded at least {seen} rows, but rows={rows}: correct rows=")
        yield table
    if rows is not None and seen != rows:
        raise SourceError(f"{name} yielded {seen} rows, but rows={rows}: correct rows=")


def _conform(tables: Iterable[pa.Table], name: str) -> Iterator[pa.Table]:
    schema, seen = None, 0
    for table in tables:
        if schema is None:
            schema = table.schema.remove_metadata()
        origin = f"{name}, rows {seen}-{seen + table.num_rows - 1}"
        conformed = conform_table(table.replace_schema_metadata(None), schema, origin, _FIX)
        seen += table.num_rows
        yield conformed


def _cut(tables: Iterable[pa.Table], target_bytes: int) -> Iterator[pa.Table]:
    """Yield the same rows in blocks of about ``target_bytes``."""
    buffered: list[pa.Table] = []
    rows = size = 0
    table = None
    for table in tables:
        buffered.append(table)
        rows, size = rows + table.num_rows, size + weigh_table(table)
        whole = _block_rows(table.schema, rows, size, target_bytes)
        if rows < whole:
            continue
        joined = pa.concat_tables(buffered)
        stop = rows - rows % whole
        yield from (joined.slice(start, whole) for start in range(0, stop, whole))
        # take() copies; a slice would keep the whole joined table in memory
        rest = take_rows(joined.slice(stop), np.arange(rows - stop))
        buffered, rows, size = [rest], rest.num_rows, weigh_table(rest)
    if rows or table is not None:
        yield pa.concat_tables(buffered)


def _block_rows(schema: pa.Schema, rows: int, size_bytes: int, target_bytes: int) -> int:
    """Return the rows of a block: from the column widths if all are fixed, else from the buffered rows' size."""
    widths = [fixed_bits(field.type) for field in schema]
    bits = None if None in widths else sum(width or 0 for width in widths)
    if bits is not None:
        return max(1, target_bytes * 8 // max(bits, 1))
    return max(1, rows * target_bytes // max(size_bytes, 1))
