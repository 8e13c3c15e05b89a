"""Makes Ray datasets: of tables that are put into Ray's object store, and of blocks that Ray's tasks read.

This imports Ray Data, which needs pandas; nothing else here does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa
import ray

from windrow.core.arrow_bytes import arrow_bytes
from windrow.core.arrow_support import empty_table
from windrow.core.source import BlockAddress, BlockReader, Source
from windrow.pipeline.executors.ray.coordinator_calls import get_all
from windrow.pipeline.executors.ray.pickling import call_with_picklable
from windrow.pipeline.executors.ray.pools import start_pools
from windrow.pipeline.tasks.map_batches import MapBatches
from windrow.pipeline.tasks.row_generator import StoredRows
from windrow.pipeline.tasks.transforms import apply_maps

# Ray's object store starts spilling above this share (object_spilling_threshold).
_STORE_SHARE = 0.8
_OBJECT_BYTES = 64 * 2**20


def object_store_bytes() -> int:
    """Bytes that the cluster's object stores hold without spilling; starts Ray if it is not initialised."""
    if not ray.is_initialized():
        ray.init()
    return int(ray.cluster_resources().get("object_store_memory", 0) * _STORE_SHARE)


def put_tables(tables: Iterable[pa.Table], find_schema: Callable[[], pa.Schema]) -> Any:
    """Make a Ray dataset from tables, which are put into the object store one after the other.

    ``find_schema`` finds the schema where there are no tables.
    """
    refs, pending, size = [], list[pa.Table](), 0
    for table in tables:
        pending.append(table)
        size += arrow_bytes(table)
        if size >= _OBJECT_BYTES:
            refs.append(ray.put(_compact(pending)))
            pending, size = [], 0
    if pending or not refs:
        refs.append(ray.put(_compact(pending) if pending else empty_table(find_schema())))
    return ray.data.from_arrow_refs(refs)


def _compact(tables: Sequence[pa.Table]) -> pa.Table:
    # combined, since pickling a slice ships its whole parent
    return pa.concat_tables(tables).combine_chunks()


@dataclass(frozen=True, eq=False)
class _ReadBlocks:
    """Reads blocks in a Ray Data task."""

    reader: Any
    maps: Any
    addresses: tuple[BlockAddress, ...]

    def __call__(self) -> Iterable[pa.Table]:
        reader: BlockReader
        maps: Sequence[MapBatches]
        reader, maps = get_all([self.reader, self.maps], "a task of to_ray")
        for address in self.addresses:
            rows = StoredRows(address.number)
            yield apply_maps(reader.read(address), maps, address.origin, rows).combine_chunks()


def read_lazily(source: Source, maps: Sequence[MapBatches]) -> Any:
    """Make a Ray dataset whose tasks read blocks; Ray chooses about how many tasks."""
    if not ray.is_initialized():
        ray.init()
    return ray.data.read_datasource(_Blocks(source, maps))


class _Blocks(ray.data.Datasource):  # type: ignore[misc]
    """A Ray datasource of the blocks of a source."""

    def __init__(self, source: Source, maps: Sequence[MapBatches]) -> None:
        super().__init__()
        self._source = source
        # put once, since all tasks share it
        self._shared = call_with_picklable(
            lambda: (ray.put(source.reader), ray.put(start_pools(maps))), maps, source.reader, otherwise=""
        )
        self._known = source.blocks.rows_known and all(stage.preserves_rows for stage in maps)

    def get_name(self) -> str:
        return "Windrow"

    def estimate_inmemory_data_size(self) -> int:
        return int(self._source.blocks.memory_bytes.sum())

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[Any]:
        blocks = len(self._source.blocks.rows)
        count = max(1, min(parallelism, blocks))
        borders = [blocks * task // count for task in range(count + 1)]
        return [self._task(first, stop) for first, stop in pairwise(borders)]

    def _task(self, first: int, stop: int) -> Any:
        table = self._source.blocks
        addresses = self._source.addresses(range(first, stop))
        rows = int(table.rows[first:stop].sum()) if self._known else None
        size = int(table.memory_bytes[first:stop].sum())
        metadata = ray.data.block.BlockMetadata(
            num_rows=rows, size_bytes=size, input_files=None, exec_stats=None
        )
        return ray.data.ReadTask(_ReadBlocks(*self._shared, addresses), metadata)
