"""Formats without a footer: columns and rows are estimated from the first rows of a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from windrow.io.catalog.fragments import FragmentFacts
from windrow.io.catalog.value_widths import fixed_bits
from windrow.io.formats.block_files import OpenFile
from windrow.io.formats.decompression import decompress, decompress_head, find_codec
from windrow.io.formats.row_group_reader import RowGroupFormat

__all__ = ["HEAD_BYTES", "Head", "RecordFormat", "SampledFormat", "estimate_facts", "read_heads"]

HEAD_BYTES = 256 * 1024
# the decompressed head is several times as large
_COMPRESSED_HEAD_BYTES = 64 * 1024
_GROWTH = 4


@dataclass(frozen=True, eq=False)
class Head:
    """The first bytes of a file, decompressed: all of them if ``whole``.

    ``content_bytes`` is the decompressed size of the file; an estimate unless ``whole``.
    """

    data: pa.Buffer
    whole: bool
    content_bytes: int


class SampledFormat(RowGroupFormat):
    """A format whose files state neither rows nor types."""

    rows_known = False
    head_bytes = HEAD_BYTES

    def heads(self, file: OpenFile) -> Iterator[Head]:
        """Yield ever longer heads of a file; the last one is the whole file."""
        raise NotImplementedError

    def describe(self, file: OpenFile, head: Head) -> FragmentFacts:
        """Estimate what a file holds from the rows in its head; none if it has no whole row."""
        raise NotImplementedError

    def summarise(self, file: OpenFile) -> FragmentFacts:
        """Describe the file by its shortest head that has rows."""
        for head in self.heads(file):
            facts = self.describe(file, head)
            if facts.rows or head.whole:
                return facts
        raise AssertionError("the last head is the whole file")


class RecordFormat(SampledFormat):
    """A format of records that only a pass over the whole file finds: each file is a row group."""

    compression: str | None

    def heads(self, file: OpenFile) -> Iterator[Head]:
        """Yield ever longer heads of a file, decompressed."""
        return read_heads(file, find_codec(self.compression, file.name))

    def read_content(self, file: OpenFile) -> pa.Buffer:
        """Read and decompress a whole file."""
        file.fetch([(0, file.size_bytes)])
        return decompress(find_codec(self.compression, file.name), file.read_range(0, file.size_bytes))


def read_heads(file: OpenFile, codec: str | None) -> Iterator[Head]:
    """Yield ever longer heads of a file; the last one is the whole file."""
    stored = HEAD_BYTES if codec is None else _COMPRESSED_HEAD_BYTES
    while stored < file.size_bytes:
        data = decompress_head(codec, file.read_range(0, stored))
        yield Head(data, False, max(file.size_bytes * data.size // stored, 1))
        stored *= _GROWTH
    data = decompress(codec, file.read_range(0, file.size_bytes))
    yield Head(data, True, data.size)


def estimate_facts(sample: pa.Table, sample_bytes: int, group_bytes: Sequence[int]) -> FragmentFacts:
    """Extrapolate the rows and bytes of row groups from the first rows of a file.

    ``sample_bytes`` are the bytes that these rows occupy in the file, and ``group_bytes``, (row
    groups,), the uncompressed bytes of each row group. A file without rows has no row groups.
    """
    groups = group_bytes if sample.num_rows else []
    shares = [size / max(sample_bytes, 1) for size in groups]
    variable = {
        field.name: [max(round(column.nbytes * share), 1) for share in shares]
        for field, column in zip(sample.schema, sample.columns, strict=True)
        if fixed_bits(field.type) is None
    }
    return FragmentFacts(
        schema=sample.schema,
        rows=[max(round(sample.num_rows * share), 1) for share in shares],
        encoded_bytes=list(groups),
        variable={name: (sizes, sizes) for name, sizes in variable.items()},
        nulls=dict.fromkeys(sample.schema.names),
    )
