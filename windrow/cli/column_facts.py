"""What the footers of Parquet files tell about each column: stored bytes, codecs, encodings, statistics."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.io.catalog.file_source import FileSource
from windrow.io.catalog.value_sizes import fixed_bits
from windrow.io.parquet.footers import find_arrow_schema, read_footer

__all__ = ["ColumnFacts", "FooterFacts", "decoded_bytes", "read_facts"]

_THREADS = 16
# of each, metadata of every column is read; a million row groups would take minutes
_MAX_FILES = 256
# of levels, which every column has; they tell nothing of the values
_LEVEL_ENCODINGS = {"RLE", "BIT_PACKED"}


@dataclass
class ColumnFacts:
    """A column of the inspected files."""

    name: str
    type: str
    stored_bytes: int = 0
    encoded_bytes: int = 0
    chunks: int = 0
    chunks_with_statistics: int = 0
    codecs: dict[str, int] = field(default_factory=dict)  # bytes of each
    encodings: dict[str, int] = field(default_factory=dict)  # chunks of each


@dataclass
class FooterFacts:
    """What the footers of some files tell."""

    files: int  # that were inspected
    all_files: int
    columns: dict[str, ColumnFacts]
    schemas: int  # distinct ones among the inspected files
    other_schema: str | None  # a file whose schema differs from the first one's
    writers: tuple[str, ...]

    @property
    def codecs(self) -> dict[str, int]:
        """The bytes that each codec stores, over all columns."""
        total: dict[str, int] = {}
        for column in self.columns.values():
            for codec, size in column.codecs.items():
                total[codec] = total.get(codec, 0) + size
        return total


def read_facts(source: FileSource) -> FooterFacts:
    """Read the footers of the files, of at most 256 that are evenly spread."""
    everything = source.manifest.paths.to_pylist()
    count = min(_MAX_FILES, len(everything))
    paths = [everything[at * len(everything) // count] for at in range(count)]
    with ThreadPoolExecutor(_THREADS) as threads:
        footers = threads.map(lambda path: read_footer(source.files, path, source.files.name(path)), paths)
        found = [footer.metadata for footer in footers]
    columns = {name: ColumnFacts(name, str(source.schema.field(name).type)) for name in source.schema.names}
    for metadata in found:
        _add_chunks(columns, metadata)
    schemas = [find_arrow_schema(metadata).remove_metadata() for metadata in found]
    other = next((at for at, schema in enumerate(schemas) if not schema.equals(schemas[0])), None)
    return FooterFacts(
        files=count,
        all_files=len(everything),
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
            _add(facts.codecs, chunk.compression.lower(), chunk.total_compressed_size)
            for encoding in set(chunk.encodings) - _LEVEL_ENCODINGS or {"PLAIN"}:
                _add(facts.encodings, encoding, 1)


def _add(counts: dict[str, int], key: str, more: int) -> None:
    counts[key] = counts.get(key, 0) + more


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
