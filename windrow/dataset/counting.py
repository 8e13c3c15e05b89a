"""Counting rows that no footer tells: reads the data once and keeps nothing."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pyarrow as pa

from windrow.core.machine import available_cores
from windrow.core.source import BlockAddress, Source
from windrow.dataset.chain import Chain
from windrow.io.source import ParquetSource
from windrow.pipeline.transforms import MapBatches, apply_maps

__all__ = ["count_rows"]


def count_rows(chain: Chain) -> int:
    """Rows of one epoch: from the manifest, or by a pass on threads where it does not tell."""
    if chain.job().rows_known:
        return int(chain.source.blocks.rows.sum())
    # transforms up to the last that changes the count are what has to run
    changing = [at for at, stage in enumerate(chain.before) if not stage.preserves_rows]
    maps = chain.before[: changing[-1] + 1] if changing else ()
    return _read_and_count(chain.source if maps else _narrow(chain.source), maps)


def _read_and_count(source: Source, maps: Sequence[MapBatches]) -> int:
    reader = source.reader

    def count(address: BlockAddress) -> int:
        return int(apply_maps(reader.read(address), maps, address.origin).num_rows)

    addresses = source.addresses(range(len(source.blocks.rows)))
    threads = ThreadPoolExecutor(available_cores(), thread_name_prefix="windrow-count")
    try:
        return sum(threads.map(count, addresses))
    finally:
        threads.shutdown(cancel_futures=True)


def _narrow(source: Source) -> Source:
    """The same rows in one column, the narrowest: a filter reads its own columns besides."""
    if not isinstance(source, ParquetSource):
        return source
    return replace(source, schema=pa.schema([min(source.schema, key=_width)]))


def _width(column: pa.Field) -> int:
    try:
        return int(column.type.bit_width)
    except (AttributeError, ValueError):
        return 2**16  # values differ in width, or are nested
