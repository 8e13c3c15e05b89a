"""A source of files: a manifest, and the columns, filter and block boundaries that are read."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.arrow_support import check_supported
from windrow.core.byte_sizes import format_bytes
from windrow.core.cached_properties import cached_property
from windrow.core.errors import PlanError
from windrow.core.source import BlockAddress, BlockReader, BlockTable, RowOrigin, SourceIdentity
from windrow.core.terminal_text import format_count
from windrow.core.tracebacks import trims_traceback
from windrow.io.catalog.blocks import (
    BlockCuts,
    Pieces,
    choose_block_bytes,
    choose_piece_bytes,
    cut_blocks,
    cut_row_groups,
    weigh_blocks,
)
from windrow.io.catalog.column_selection import (
    check_schema_argument,
    describe_changes,
    find_columns,
    select_columns,
)
from windrow.io.catalog.discovery import ManifestOrPath, merge_manifest, name_schemas, resolve_files
from windrow.io.catalog.file_format import FileFormat, FileReading, Format, IndexedFormat, SurveyedFormat
from windrow.io.catalog.filters import check_filter, digest_filter, kept_fragments
from windrow.io.catalog.hive_partitions import Partitions, find_partitions
from windrow.io.catalog.manifest import Manifest, digest_parts, digest_schema, save_manifest
from windrow.io.catalog.row_ids import RowIdSource, count_rows, find_origins, read_kept_rows
from windrow.io.storage.file_versions import RowGroups
from windrow.io.storage.filesystems import Files, Paths
from windrow.io.storage.retries import DEFAULT_RETRIES, Retries

if TYPE_CHECKING:
    import pyarrow.compute as pc

_STAMP_THREADS = 16

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class FileSource:
    """Files of one format as a ``windrow.core.source.Source``."""

    files: Files
    manifest: Manifest
    schema: pa.Schema  # of every block: the selected columns, by default those of the files, then partitions
    stored: pa.Schema  # the columns of the files, in the types that they are read in, which a filter can use
    given: pa.Schema | None  # the user's ``schema=``
    partitions: Partitions
    filter: pc.Expression | None  # keeps rows for which it is true
    # adjacent row groups are joined up to this many encoded bytes, and larger ones are cut; None: as many as the
    # manifest suggests
    target_block_bytes: int | None
    format: FileFormat

    def __repr__(self) -> str:
        return f"{self.format.name}({self.files.url!r}: {self.describe()})"

    def __reduce__(self) -> tuple[Any, ...]:
        # cached properties are larger than the fields, and cheap to recompute
        return type(self), tuple(getattr(self, field.name) for field in fields(self))

    @property
    def fingerprint(self) -> str:
        return self.manifest.fingerprint

    def identity(self, files: int | None = None) -> SourceIdentity:
        manifest = self.manifest if files is None else self.manifest.head(files)
        return SourceIdentity(
            fingerprint=manifest.fingerprint,
            schema=digest_schema(self.manifest.schema, self.format.options + self._given_text),
            files=manifest.fragments,
            rows=int(manifest.rows.sum()),
            block_bytes=self._choose_block_bytes(manifest),
            cuts_row_groups=(self._pieces if files is None else self._cut_row_groups(manifest)).any_cut,
            filter="" if self.filter is None else digest_filter(self.filter),
        )

    @property
    def _given_text(self) -> str:
        """The types of ``schema=``; empty without it, so that states of before it existed stay valid."""
        if self.given is None:
            return ""
        return "\nschema=\n" + "\n".join(f"{field.name}: {field.type}" for field in self.given)

    @property
    def contents(self) -> str:
        """Includes the files' version stamps, since values can change while footers do not."""
        with ThreadPoolExecutor(_STAMP_THREADS, "windrow-stamps") as threads:
            stamps = b"\n".join(threads.map(self.files.stamp, self.manifest.paths.to_pylist()))
        cuts, pieces, options = self._cuts, self._pieces, (self.format.options + self._given_text).encode()
        # the text of a filter omits values if there are many
        row_filter = pickle.dumps(self.filter, protocol=4)
        borders = (cuts.fragments, cuts.starts, cuts.stops, *((pieces.first_rows,) if pieces.any_cut else ()))
        arrays = [array.tobytes() for array in borders]
        schema = self.schema.serialize().to_pybytes()
        return digest_parts((self.fingerprint.encode(), options, stamps, schema, row_filter, *arrays))

    @property
    def reader(self) -> BlockReader:
        """The block reader; small when pickled, since it does not contain the manifest."""
        return self._reader(self.schema, self.row_filter)

    @property
    def row_filter(self) -> pc.Expression | None:
        """The filter, if it must be evaluated on rows; None if it only selects whole files."""
        return None if self._fragment_filter is not None else self.filter

    @property
    def whole_reader(self) -> BlockReader:
        return self._reader(pa.schema([*self.stored, *self.partitions.schema]), None)

    def _reader(self, schema: pa.Schema, row_filter: pc.Expression | None) -> BlockReader:
        return self.format.reader(FileReading(self.files, schema, self.stored, self.partitions, row_filter))

    @cached_property
    def first_row_ids(self) -> NDArray[np.int64]:
        self._check_row_ids()
        return self._pieces.manifest.row_starts[self._cuts.starts]

    def count_blocks(self) -> NDArray[np.int64]:
        """(blocks,) the rows that each block delivers; if unknown, reads one column and those that the filter needs."""
        if self.blocks.rows_known:
            return self.blocks.rows
        # only the narrowest column; a filter reads its own columns in addition
        narrow = self._reader(pa.schema([min(self.schema, key=_width)]), self.row_filter)
        return count_rows(narrow.read, self.addresses(range(len(self.blocks.rows))))

    def row_numbers(self, block: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        row_filter = self.row_filter
        if row_filter is not None:
            rows = read_kept_rows(self.whole_reader, row_filter, *self.addresses([block]))[1][rows]
        return rows + self.first_row_ids[block]

    def row_lineage(self, numbers: NDArray[np.int64]) -> list[RowOrigin]:
        self._check_row_ids()
        return find_origins(self.manifest, numbers, self.files.name)

    def with_row_id(self, name: str) -> RowIdSource:
        self._check_row_ids()
        return RowIdSource(self, name)

    @cached_property
    def blocks(self) -> BlockTable:
        return weigh_blocks(
            self._pieces.manifest,
            self._cuts,
            list(self.schema),
            self.partitions,
            rows_known=self.format.rows_known and self.row_filter is None,
            rows_bounded=self.format.rows_known,
        )

    @property
    def row_group_rows(self) -> NDArray[np.int64]:
        """(row groups,) the stored rows of each row group that blocks are made of, in stored order."""
        rows: NDArray[np.int64] = self.manifest.rows.astype(np.int64)[self._read_groups]
        return rows

    @property
    def _read_groups(self) -> NDArray[np.int64]:
        """(row groups,) the number of each row group that blocks are made of."""
        borders = np.zeros(len(self._pieces.groups) + 1, np.int64)
        np.add.at(borders, self._cuts.starts, 1)
        np.add.at(borders, self._cuts.stops, -1)
        return np.unique(self._pieces.groups[np.cumsum(borders)[:-1] > 0])

    @cached_property
    def null_counts(self) -> Mapping[str, int | None]:
        """Nulls by column from file metadata; with a filter, None for columns with nulls, since it can drop them."""
        counts = {**self.manifest.null_counts, **self._partition_nulls()}
        certain = self.filter is None
        return {name: counts[name] if certain or counts[name] == 0 else None for name in self.schema.names}

    def addresses(self, blocks: Sequence[int]) -> tuple[BlockAddress, ...]:
        """The addresses of blocks; of many at once in a fraction of the time, since NumPy does the counting."""
        numbers = np.asarray(blocks, np.int64)
        cuts, pieces = self._cuts, self._pieces
        first_pieces, first_files = cuts.starts[numbers], cuts.fragments[numbers]
        starts, stops = pieces.groups[first_pieces], pieces.groups[cuts.stops[numbers] - 1] + 1
        files = np.searchsorted(self.manifest.row_group_ends, stops - 1, side="right") - first_files + 1
        # of each block, its files one behind another
        ends = np.cumsum(files)
        fragments = np.arange(ends[-1] if len(ends) else 0) + np.repeat(first_files + files - ends, files)
        groups = self._groups(fragments, np.repeat(starts, files), np.repeat(stops, files))
        found = [groups[end - count : end] for end, count in zip(ends.tolist(), files.tolist(), strict=True)]
        for at in np.flatnonzero(pieces.is_cut[first_pieces]).tolist():
            first_row, rows = (
                int(each[first_pieces[at]]) for each in (pieces.first_rows, pieces.manifest.rows)
            )
            found[at] = (replace(found[at][0], first_row=first_row, stop_row=first_row + rows),)
        return tuple(map(BlockAddress, map(self._origin, found), found, numbers.tolist()))

    def describe(self) -> str:
        manifest = self.manifest
        everything = len({*manifest.schema.names, *self.partitions.schema.names})
        dropped = int(np.count_nonzero(~self._kept))
        return (
            format_count(manifest.fragments - dropped, "fragment")
            + (f" of {manifest.fragments:,} (others filtered out)" if dropped else "")
            + f", {format_count(len(self._read_groups), 'row group')}"
            + self._describe_blocks()
            + f"; {len(self.schema)} of {format_count(everything, 'column')}"
        )

    def _describe_blocks(self) -> str:
        size, is_cut = self.block_bytes, self._pieces.any_cut
        is_chosen = self.target_block_bytes is None and size > 0
        if not is_chosen and not is_cut:
            return ""
        how = [f"auto: up to {format_bytes(size)} encoded"] if is_chosen else []
        how += ["large row groups are cut"] if is_cut else []
        return f" in {len(self._cuts.starts):,} blocks ({'; '.join(how)})"

    @property
    def schema_changes(self) -> tuple[str, ...]:
        return describe_changes(self.manifest, self.schema, self.partitions.schema.names)

    def save_manifest(self, path: str | os.PathLike[str]) -> None:
        """Write the manifest to a local file, to be passed as ``manifest=`` later."""
        save_manifest(self.manifest, path)

    @cached_property
    def _fragment_filter(self) -> NDArray[np.bool_] | None:
        """(fragments,) which fragments the filter keeps; None without a filter, or if it needs rows."""
        if self.filter is None:
            return None
        return kept_fragments(self.filter, self.manifest, self.partitions)

    @property
    def _kept(self) -> NDArray[np.bool_]:
        kept = self._fragment_filter
        return np.ones(self.manifest.fragments, np.bool_) if kept is None else kept

    @property
    def block_bytes(self) -> int:
        """Adjacent row groups are joined up to this many encoded bytes; 0: each is a block."""
        return self._choose_block_bytes(self.manifest)

    def _choose_block_bytes(self, manifest: Manifest) -> int:
        """The size up to which the row groups of a manifest, this one or its first files, are joined."""
        if self.target_block_bytes is not None:
            return self.target_block_bytes
        return choose_block_bytes(manifest, self._kept[: manifest.fragments])

    @property
    def cut_row_groups(self) -> int:
        """How many row groups are cut into several blocks."""
        return len(np.unique(self._pieces.groups[self._pieces.is_cut]))

    @cached_property
    def _pieces(self) -> Pieces:
        return self._cut_row_groups(self.manifest)

    def _cut_row_groups(self, manifest: Manifest) -> Pieces:
        target = self.target_block_bytes
        if target is None:
            target = choose_piece_bytes(manifest, self._kept[: manifest.fragments])
        return cut_row_groups(manifest, target, self.format.cut_sizes)

    @cached_property
    def _cuts(self) -> BlockCuts:
        return cut_blocks(self._pieces, self._kept, self.block_bytes, joins_files=self.format.joins_files)

    def _check_row_ids(self) -> None:
        if not self.format.rows_known:
            raise PlanError(
                f"{self!r} cannot have row ids: {self.format.name} files do not store their number of rows; "
                "write the data as Parquet for that"
            )

    def _groups(self, fragments: Ints, starts: Ints, stops: Ints) -> tuple[RowGroups, ...]:
        """Of each fragment its row groups among those of the manifest, as a locator."""
        manifest, ends = self.manifest, self.manifest.row_group_ends
        before = np.where(fragments > 0, ends[fragments - 1], 0)
        stamps = (
            np.zeros(len(fragments), np.uint64) if manifest.stamps is None else manifest.stamps[fragments]
        )
        return tuple(
            map(
                RowGroups,
                [manifest.paths[fragment].as_py() for fragment in fragments.tolist()],
                manifest.file_bytes[fragments].tolist(),
                map(bytes, manifest.footer_hashes[fragments]),
                np.maximum(starts - before, 0).tolist(),
                (np.minimum(stops, ends[fragments]) - before).tolist(),
                stamps.tolist(),
            )
        )

    def _origin(self, groups: Sequence[RowGroups]) -> str:
        first, *others = (self.files.name(each.path) for each in groups)
        return f"{first} to {others[-1]}" if others else groups[0].locate(first)

    def _partition_nulls(self) -> dict[str, int]:
        if not len(self.partitions.schema):
            return {}
        rows = np.diff(self.manifest.row_starts[self.manifest.row_group_ends], prepend=0)
        table = self.partitions.table(self.manifest.paths.to_pylist())
        nulls = {name: np.asarray(table.column(name).is_null(), np.bool_) for name in table.column_names}
        return {name: int(rows[is_null].sum()) for name, is_null in nulls.items()}


def _width(column: pa.Field[Any]) -> int:
    try:
        return int(column.type.bit_width)
    except (AttributeError, ValueError):
        return 2**16  # variable-width or nested


@trims_traceback
def open_files(
    paths: Paths | None,
    format: Format | SurveyedFormat | IndexedFormat,
    *,
    columns: Sequence[str] | None = None,
    filter: pc.Expression | None = None,
    filesystem: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    partitioning: str | None = "hive",
    include_paths: bool = False,
    directory_column: str | None = None,
    manifest: ManifestOrPath | None = None,
    target_block_bytes: int | None = None,
    schema: pa.Schema | None = None,
    retries: Retries = DEFAULT_RETRIES,
) -> FileSource:
    """Resolve paths to a source: list the files and read their metadata, or use a manifest.

    ``include_paths`` adds a column of file paths, ``directory_column`` one of the names of the files'
    directories. ``schema`` decides the types of columns, and which there are. With ``manifest=`` nothing is
    listed and no metadata is read: ``paths`` only gives the location of the manifest's files (the original
    paths, or those the data has been moved to); None means the original location.
    ``target_block_bytes=None`` leaves the size of blocks to the manifest.
    """
    if partitioning not in ("hive", None):
        raise PlanError(f"partitioning={partitioning!r}: use 'hive' (key=value directories) or None")
    if target_block_bytes is not None and target_block_bytes < 1:
        raise PlanError(f"target_block_bytes={target_block_bytes} must be at least 1 byte")
    given = check_schema_argument(schema)
    files, listing = resolve_files(paths, filesystem, storage_options, manifest, retries, format)
    merged = merge_manifest(listing, format, files.name)
    partitions = find_partitions(listing.paths.to_pylist() if partitioning else [], listing.common_columns)
    from_directories, found = partitions.schema.names, listing.schema.names
    if directory_column is not None:
        partitions = partitions.with_directories(directory_column, files.url, found)
    if include_paths:
        partitions = partitions.with_paths(files.url, found)
    added = [name for name in partitions.schema.names if name not in from_directories]
    partitions = partitions.with_types(given)
    known = find_columns(merged, partitions.schema, given, name_schemas(listing, files.name), added)
    selected = select_columns(known.selectable, columns)
    known.check(selected, partitions.schema.names)
    if filter is not None:
        check_filter(filter, pa.schema([*known.stored, *partitions.schema]), merged.conflicts)
    check_supported(selected, files.url)
    return FileSource(
        files, listing, selected, known.stored, given, partitions, filter, target_block_bytes, format
    )
