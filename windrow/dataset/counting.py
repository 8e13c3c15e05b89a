"""Counting rows that no footer tells: reads the data once and keeps nothing."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from windrow.core.machine import available_cores
from windrow.core.source import BlockAddress, Source, TracingSource
from windrow.dataset.chain import Chain
from windrow.pipeline.transforms import MapBatches, apply_maps

__all__ = ["count_rows"]


def count_rows(chain: Chain) -> int:
    """Rows of one epoch: from the manifest, or by a pass on threads where it does not tell."""
    source = chain.source
    if chain.job().rows_known:
        return int(source.blocks.rows.sum())
    # transforms up to the last that changes the count are what has to run
    changing = [at for at, stage in enumerate(chain.before) if not stage.preserves_rows]
    maps = chain.before[: changing[-1] + 1] if changing else ()
    if not maps and isinstance(source, TracingSource):
        return int(source.count_blocks().sum())
    return _read_and_count(source, maps)


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
