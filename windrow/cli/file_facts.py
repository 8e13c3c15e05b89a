"""What manifest and footers tell of files: how data is divided into row groups, what that costs, columns and codecs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.core.byte_sizes import format_bytes
from windrow.core.terminal_text import format_count
from windrow.io.catalog.file_source import FileSource
from windrow.io.catalog.value_sizes import fixed_bits
from windrow.io.parquet.footers import find_arrow_schema, read_footer
from windrow.pipeline.statistics.bottleneck import PipelineFacts

# explain() warns where windows hold fewer blocks
FEW_BLOCKS = 8
_LARGE_GROUP_BYTES = 256 * 2**20
_SMALL_GROUP_BYTES = 2**20
# of so few, reading all takes no time whatever their size
_MANY_GROUPS = 256
# row groups of less mix well in windows of usual sizes
_COARSE_BLOCK_BYTES = 16 * 2**20
_THREADS = 16
# of each, metadata of every column is read; a million row groups would take minutes
_MAX_FILES = 256
# of levels, which every column has; they tell nothing of the values
_LEVEL_ENCODINGS = {"RLE", "BIT_PACKED"}


def describe_files(source: FileSource) -> dict[str, Any]:
    """Numbers and sizes of the files, their row groups, and how these become blocks."""
    manifest = source.manifest
    return {
        "format": source.format.name,
        "files": manifest.fragments,
        "stored_bytes": int(manifest.file_bytes.sum()),
        "row_groups": manifest.row_groups,
        "row_group_rows": spread(manifest.rows.astype(np.int64)),
        "row_group_encoded_bytes": spread(manifest.encoded_bytes.astype(np.int64)),
        "files_of_one_row_group": int((np.diff(manifest.row_group_ends, prepend=0) == 1).sum()),
        "cut_row_groups": source.cut_row_groups,
        "blocks": len(source.blocks.rows),
        "target_block_bytes": source.block_bytes,
    }


def spread(values: np.ndarray[Any, np.dtype[np.int64]]) -> dict[str, int]:
    """The least, the mean and the most."""
    if not len(values):
        return {"least": 0, "mean": 0, "most": 0}
    return {"least": int(values.min()), "mean": int(values.mean()), "most": int(values.max())}


def warn_of_files(found: dict[str, Any]) -> list[str]:
    """What `describe_files` found that costs time or keeps windows from mixing, and how to fix it; one line each."""
    lines = []
    groups, files, encoded = found["row_groups"], found["files"], found["row_group_encoded_bytes"]
    cut, largest = found["cut_row_groups"], format_bytes(encoded["most"])
    if cut:
        lines.append(
            f"large row groups: {format_count(cut, 'row group')} of up to {largest} encoded "
            f"{'is' if cut == 1 else 'are'} cut into blocks of adjacent rows. Windows mix these, and a task holds only "
            "one decoded. Pages at the borders and dictionaries are decoded more than once: write row groups of 64 "
            "MiB or less"
        )
    elif encoded["most"] > _LARGE_GROUP_BYTES:
        lines.append(
            f"large row groups: up to {largest} encoded. These are not cut, so a window that mixes {FEW_BLOCKS} of "
            f"them takes {format_bytes(FEW_BLOCKS * encoded['most'])}, and a task holds one decoded. Write row groups "
            "of 64 MiB or less, or leave target_block_bytes to windrow"
        )
    if encoded["mean"] < _SMALL_GROUP_BYTES and groups > max(_MANY_GROUPS, FEW_BLOCKS * files):
        joined = (
            "Adjacent ones are joined into blocks, which costs no quality"
            if found["blocks"] < groups
            else "Each is a block of its own"
        )
        lines.append(
            f"small row groups: {format_bytes(encoded['mean'])} encoded on average, so reads are many and small. "
            f"{joined}; write row groups of some MiB for speed"
        )
    single, coarse = found["files_of_one_row_group"], max(found["target_block_bytes"], _COARSE_BLOCK_BYTES)
    if single == files > 1 and not cut and encoded["mean"] > coarse:
        lines.append(
            f"files of one row group: each of the {files:,} files is one block of {format_bytes(encoded['mean'])} "
            "encoded, too small to be cut. Windows consist of whole files; several row groups a file give finer "
            "windows"
        )
    mean_bytes = found["stored_bytes"] / max(1, files)
    if PipelineFacts(files=files, file_bytes=mean_bytes).has_small_files:
        lines.append(
            f"small files: {files:,} files of {format_bytes(mean_bytes)} on average. Adjacent ones share a block, but "
            "each file is listed and opened, which costs about as much as decoding 100 KB, and a request on object "
            "storage. Write larger files, with windrow premix or write_parquet()"
        )
    return lines


@dataclass
class ColumnFacts:
    """A column of the inspected files."""

    name: str
    type: str
    stored_bytes: int = 0
    encoded_bytes: int = 0
    chunks: int = 0
    chunks_with_statistics: int = 0
    codecs: Counter[str] = field(default_factory=Counter)  # bytes of each
    encodings: Counter[str] = field(default_factory=Counter)  # chunks of each


@dataclass
class FooterFacts:
    """What the footers of some files tell."""

    files: int  # that were inspected
    columns: dict[str, ColumnFacts]
    schemas: int  # distinct ones among the inspected files
    other_schema: str | None  # a file whose schema differs from the first one's
    writers: tuple[str, ...]

    @property
    def codecs(self) -> Counter[str]:
        """The bytes that each codec stores, over all columns."""
        total: Counter[str] = Counter()
        for column in self.columns.values():
            total.update(column.codecs)
        return total


def read_facts(source: FileSource) -> FooterFacts:
    """Read the footers of the files, of at most 256 that are evenly spread."""
    everything = source.manifest.paths.to_pylist()
    inspected = min(_MAX_FILES, len(everything))
    paths = [everything[at * len(everything) // inspected] for at in range(inspected)]
    with ThreadPoolExecutor(_THREADS) as threads:
        footers = threads.map(lambda path: read_footer(source.files, path, source.files.name(path)), paths)
        found = [footer.metadata for footer in footers]
    columns = {name: ColumnFacts(name, str(source.schema.field(name).type)) for name in source.schema.names}
    for metadata in found:
        _add_chunks(columns, metadata)
    schemas = [find_arrow_schema(metadata).remove_metadata() for metadata in found]
    other = next((at for at, schema in enumerate(schemas) if not schema.equals(schemas[0])), None)
    return FooterFacts(
        files=inspected,
        columns=columns,
        schemas=_count_distinct(schemas),
        other_schema=None if other is None else source.files.name(paths[other]),
        writers=tuple(sorted({str(metadata.created_by) for metadata in found if metadata.created_by})),
    )


def _add_chunks(columns: dict[str, ColumnFacts], metadata: Any) -> None:
    for row_group in map(metadata.row_group, range(metadata.num_row_groups)):
        for chunk in map(row_group.column, range(row_group.num_columns)):
            facts = columns.get(chunk.path_in_schema.partition(".")[0])
            if facts is None:
                continue
            facts.stored_bytes += chunk.total_compressed_size
            facts.encoded_bytes += chunk.total_uncompressed_size
            facts.chunks += 1
            statistics = chunk.statistics
            facts.chunks_with_statistics += bool(statistics is not None and statistics.has_min_max)
            facts.codecs[chunk.compression.lower()] += chunk.total_compressed_size
            facts.encodings.update(set(chunk.encodings) - _LEVEL_ENCODINGS or {"PLAIN"})


def _count_distinct(schemas: Iterable[pa.Schema]) -> int:
    distinct: list[pa.Schema] = []
    for schema in schemas:
        if not any(schema.equals(known) for known in distinct):
            distinct.append(schema)
    return len(distinct)


def decoded_bytes(source: FileSource, name: str) -> int:
    """Bytes of a column in memory, of all files; an estimate unless it is fixed-width."""
    bits = fixed_bits(source.schema.field(name).type)
    if bits is not None:
        return int(source.manifest.rows.sum(dtype=np.int64)) * bits // 8
    variable = source.manifest.variable.get(name)
    return 0 if variable is None else int(variable.memory.sum(dtype=np.int64))
