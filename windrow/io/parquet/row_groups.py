"""Row groups of a Parquet file as Arrow reads them, and how they are joined into parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from windrow.io.formats.row_group_reader import PART_BYTES
from windrow.io.storage.verified_files import BlockFile, RowGroups

__all__ = ["count_rows", "join_groups", "open_parquet", "read_groups"]


def open_parquet(block: BlockFile, **options: Any) -> Any:
    """Open the file of a block for Arrow; the footer is parsed already."""
    import pyarrow.parquet as pq

    # pre_buffer=False: remote ranges are prefetched into memory already, or read one by one
    return pq.ParquetFile(
        block.file,
        metadata=block.footer.metadata,
        pre_buffer=False,
        page_checksum_verification=True,
        **options,
    )


def count_rows(metadata: Any, numbers: Iterable[int]) -> int:
    """The rows of some row groups, as the footer states them."""
    return sum(metadata.row_group(number).num_rows for number in numbers)


def read_groups(stored: Any, numbers: Sequence[int], names: list[str]) -> pa.Table:
    """Read columns of row groups, and check the row count: Arrow can silently read fewer rows from corrupt pages."""
    table = stored.read_row_groups(list(numbers), columns=names, use_threads=False)
    expected = count_rows(stored.metadata, numbers)
    if table.num_rows != expected or any(len(column) != expected for column in table.columns):
        raise pa.ArrowInvalid(f"pages hold {table.num_rows} rows where the footer states {expected}")
    return table


def join_groups(metadata: Any, groups: RowGroups) -> Iterator[tuple[int, ...]]:
    """Join adjacent row groups into parts of at least `PART_BYTES`, except the last."""
    joined: list[int] = []
    joined_bytes = 0
    for number in range(groups.start, groups.stop):
        joined.append(number)
        joined_bytes += metadata.row_group(number).total_byte_size
        if joined_bytes >= PART_BYTES:
            yield tuple(joined)
            joined, joined_bytes = [], 0
    if joined:
        yield tuple(joined)
