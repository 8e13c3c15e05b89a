"""The simulated clusters and datasets, and the unit costs of work."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from windrow.io.catalog.file_source import FileSource
from windrow.io.catalog.hive_partitions import find_partitions
from windrow.io.catalog.manifest import Manifest, narrowed
from windrow.io.parquet.block_reader import ParquetFormat
from windrow.io.storage.filesystems import Files

GB = 1e9
GBIT = 1e9 / 8
# number of columns of `bench.data.generators`, and its encoded size in Parquet before compression over its decoded size
COLUMNS = 21
ENCODED_SHARE = 0.457
# packed width of each column, from the footers of that data; the key of a large dataset needs all 8 bytes
_WORD_BYTES = (8, 2, 1, 1, 1, 1, 2, 1, 1, 1, 2, 2, 4, 4, 2, 4, 4, 4, 1, 1, 8)
_GROUPS_PER_FILE = 10
_SPREAD = 0.1


@dataclass(frozen=True)
class Costs:
    """Unit costs in core seconds; the defaults are of one core of an AMD EPYC.

    Those of the owner are in the coordinator's busiest thread, and ``call`` is outside of it.
    """

    # per decoded byte
    decode: float = 0.65 / GB
    group: float = 0.25 / GB
    put: float = 0.2 / GB
    place: float = 0.25 / GB
    consume: float = 0.01 / GB
    # per byte that crosses nodes, on both the sender and the receiver
    transfer: float = 0.6 / GB
    # in addition to their bytes; per object that a shard maps; per task, output, handle in an answer and call
    task: float = 1e-3
    run: float = 0.2e-3
    get: float = 20e-6
    owner_task: float = 0.44e-3
    owner_object: float = 31e-6
    owner_handle: float = 10e-6
    owner_call: float = 0.2e-3
    call: float = 0.8e-3
    # per waiting request at every state change
    wake: float = 8e-6

    @property
    def map(self) -> float:
        return self.decode + self.group + self.put


@dataclass(frozen=True)
class Cluster:
    """Identical nodes with trainers; the coordinator runs on the first node."""

    nodes: int = 1
    cpus: int = 2
    # relative to the core that costs were measured on
    cpu_speed: float = 1.0
    memory_bytes: float = 24 * GB
    store_share: float = 0.3
    nic_bytes: float = 10 * GBIT
    # of a task to object storage; 0: the data is in the page cache
    connections: int = 4
    connection_bytes: float = 0.087 * GB
    first_byte_seconds: float = 0.15
    # stored bytes over decoded bytes
    stored_share: float = 0.36
    # of a node, and threads of a trainer that place runs
    trainers: int = 1
    placers: int = 2
    # ranks of a node that read each of its shards; its host is their only client, and places each run once
    replicas: int = 1
    trainer_bytes: float | None = None

    @property
    def shards(self) -> int:
        return self.nodes * self.trainers

    @property
    def store_bytes(self) -> int:
        return int(self.memory_bytes * self.store_share)


def make_source(
    row_groups: int, group_bytes: int, block_bytes: int = 64 * 2**20, *, packs: bool = True
) -> FileSource:
    """Make files of 8-byte columns of about equal row groups; ``packs``: most values fit into fewer bytes."""
    draws = np.random.Philox(key=1).random_raw(row_groups) / 2.0**64
    rows = (group_bytes / (8 * COLUMNS) * (1 + _SPREAD * (2 * draws - 1))).astype(np.int64)
    files = -(-row_groups // _GROUPS_PER_FILE)
    schema = pa.schema([(f"column{number}", pa.int64()) for number in range(COLUMNS)])
    names = [f"part-{number:07d}.parquet" for number in range(files)]
    manifest = Manifest(
        root="bucket/train",
        schema=schema,
        paths=pa.array(names, pa.large_string()),
        file_bytes=np.full(files, group_bytes * _GROUPS_PER_FILE, np.int64),
        footer_hashes=np.zeros((files, 16), np.uint8),
        row_group_ends=np.minimum(np.arange(1, files + 1) * _GROUPS_PER_FILE, row_groups),
        rows=narrowed(rows),
        encoded_bytes=narrowed((rows * (8 * COLUMNS * ENCODED_SHARE)).astype(np.int64)),
        variable={},
        null_counts=dict.fromkeys(schema.names, 0),
        ranges=dict(zip(schema.names, map(_range, _WORD_BYTES), strict=True)) if packs else {},
    )
    partitions = find_partitions([], schema.names)
    columns = (schema, schema, None)
    return FileSource(
        Files("bucket/train"), manifest, *columns, partitions, None, block_bytes, ParquetFormat()
    )


def _range(word_bytes: int) -> tuple[int, int]:
    return (0, 2 ** (8 * word_bytes) - 1) if word_bytes < 8 else (-(2**63), 2**63 - 1)
