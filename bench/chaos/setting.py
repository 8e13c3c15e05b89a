"""The data, the pipeline and the cluster of a chaos run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

import windrow

__all__ = ["COLUMNS", "Setting", "derive", "make_pipeline", "write_data"]

COLUMNS = 32
_FACTOR = 0x9E3779B97F4A7C15
_FILTER_MODULUS = 5


@dataclass(frozen=True)
class Setting:
    """The data, the pipeline and the cluster.

    Attributes
    ----------
    groups, group_rows
        Row groups of the file, and rows of each.
    window_groups
        Row groups of a window.
    block_seconds
        Duration of a transform per block, so that map tasks are often killed while they run.
    counted
        Whether rows are filtered, so that row counts are unknown until blocks are read.
    trainers, batch_rows
        Number of trainers, and rows of a batch.
    lead
        Maximum number of steps by which a trainer may lead the others, as if they exchanged gradients.
    max_rollback_steps
        Maximum number of steps by which the state that a trainer restarts from is older than its last step.
    nodes
        Number of nodes with trainers and without, in addition to the driver's node.
    cpus
        Logical CPUs of each raylet.
    store_bytes
        Size of each raylet's object store.
    """

    seed: int = 7
    groups: int = 48
    group_rows: int = 12_500
    window_groups: int = 16
    block_seconds: float = 0.04
    counted: bool = False
    trainers: int = 3
    batch_rows: int = 1_000
    lead: int = 100
    max_rollback_steps: int = 8
    nodes: tuple[int, int] = (2, 1)
    cpus: int = 2
    store_bytes: int = 120 * 2**20

    def keys_of(self, group: int) -> NDArray[np.int64]:
        """The keys that a row group delivers, in stored order."""
        keys = np.arange(group * self.group_rows, (group + 1) * self.group_rows)
        return keys[keys % _FILTER_MODULUS != 0] if self.counted else keys


def derive(keys: NDArray[np.int64], number: int) -> NDArray[np.int64]:
    """Column ``number`` of the rows with these keys."""
    return (keys * np.int64(2 * number + 1)) ^ np.int64(_FACTOR >> 2)


def write_data(setting: Setting, path: Path) -> None:
    """Write a file whose columns are functions of its keys."""
    names = ["key", *(f"c{number}" for number in range(1, COLUMNS))]
    schema = pa.schema([(name, pa.int64()) for name in names])
    with pq.ParquetWriter(path, schema, use_dictionary=False, compression="none") as writer:
        for group in range(setting.groups):
            keys = np.arange(group * setting.group_rows, (group + 1) * setting.group_rows)
            arrays = [pa.array(keys), *(pa.array(derive(keys, number)) for number in range(1, COLUMNS))]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))


class _SlowTransform:
    """A transform that sleeps."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __call__(self, batch: Any) -> Any:
        import time

        time.sleep(self._seconds)
        return batch


def make_pipeline(setting: Setting, path: Path) -> windrow.DatasetPipeline:
    """The infinite pipeline that trainers read."""
    ds = windrow.read_parquet(str(path), target_block_bytes=1)
    slow = ds.map_batches(_SlowTransform(setting.block_seconds), batch_format="pyarrow")
    if setting.counted:
        slow = slow.map_batches(_filter_keys, batch_format="pyarrow", preserves_rows=False)
    pipe = slow.window(blocks_per_window=setting.window_groups).repeat()
    return pipe.random_shuffle_each_window(seed=setting.seed)


def _filter_keys(batch: pa.Table) -> pa.Table:
    return batch.filter(pa.array(batch["key"].to_numpy() % _FILTER_MODULUS != 0))
