"""Row ids: a row's rank among all stored rows of all files, and the file and row group behind an id."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.machine import available_cores
from windrow.core.source import BlockAddress, BlockReader, RowOrigin
from windrow.io.catalog.blocks import BlockCuts
from windrow.io.catalog.filters import kept_places
from windrow.io.catalog.manifest import Manifest

if TYPE_CHECKING:
    import pyarrow.compute as pc

__all__ = ["compute_first_row_ids", "count_rows", "find_origins", "read_kept_rows"]

Ints = NDArray[np.int64]


def compute_first_row_ids(manifest: Manifest, cuts: BlockCuts) -> Ints:
    """(blocks,) the row id of the first row of each."""
    return _row_starts(manifest)[cuts.starts]


def find_origins(manifest: Manifest, numbers: Ints, name: Callable[[str], str]) -> list[RowOrigin]:
    """Where the rows of some row ids are stored; ``name`` converts a relative path to the URL in messages."""
    starts, group_ends = _row_starts(manifest), manifest.row_group_ends
    # an empty row group starts at the same row as the next one; side="right" skips it
    groups = np.searchsorted(starts, numbers, side="right") - 1
    fragments = np.searchsorted(group_ends, groups, side="right")
    firsts = np.append(0, group_ends)[fragments]
    names = {fragment: name(manifest.path(fragment)) for fragment in np.unique(fragments).tolist()}
    found = (fragments, groups - firsts, numbers - starts[groups])
    return [
        RowOrigin(names[fragment], group, row)
        for fragment, group, row in zip(*(array.tolist() for array in found), strict=True)
    ]


def read_kept_rows(
    everything: BlockReader, row_filter: pc.Expression, address: BlockAddress
) -> tuple[pa.Table, Ints]:
    """Read a block's rows before a filter, and the indices of those that it keeps."""
    table = everything.read(address)
    return table, kept_places(row_filter, table)


def count_rows(read: Callable[[BlockAddress], pa.Table], addresses: Sequence[BlockAddress]) -> Ints:
    """(blocks,) the rows of each, by reading them in threads."""
    threads = ThreadPoolExecutor(available_cores(), thread_name_prefix="windrow-count")
    try:
        counts = threads.map(lambda address: read(address).num_rows, addresses)
        return np.fromiter(counts, np.int64, len(addresses))
    finally:
        threads.shutdown(cancel_futures=True)


def _row_starts(manifest: Manifest) -> Ints:
    rows = manifest.rows.astype(np.int64)
    return np.append(0, np.cumsum(rows))
