"""Limits: what decoding, tensors, first touch of memory, and Ray itself take."""

from __future__ import annotations

import mmap
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.peers.base import OneTrainer, Peer, RayPeer, import_modules, map_ahead
from bench.training.tensors import Tensors, cut_batches, to_tensors
from bench.training.trainer import EpochTimes, TrainerResult

_WINDOWS = 2
_BLOCK_BYTES = 16 * 2**20
_TASKS_EACH = 4
# smaller objects do not go to the object store
_MIN_BYTES = 2**20
_PAGE_BYTES = 4096
# imports that every process that reads Parquet needs
_IMPORTS = ("numpy", "pyarrow", "pyarrow.parquet")


RowGroup = tuple[str, pq.FileMetaData, int]


def _list_groups(paths: Sequence[str]) -> Iterator[RowGroup]:
    for path in paths:
        footer = pq.read_metadata(path)
        for number in range(footer.num_row_groups):
            yield path, footer, number


def _read_group(group: RowGroup, columns: Sequence[str]) -> pa.Table:
    path, footer, number = group
    with pq.ParquetFile(path, metadata=footer, memory_map=True, pre_buffer=False) as file:
        return file.read_row_group(number, columns=list(columns), use_threads=False)


class Limit(Peer):
    """A system without a trainer: subclasses do the work of an epoch at once."""

    def run(self) -> Sequence[TrainerResult]:
        times: list[EpochTimes] = []
        with ThreadPoolExecutor(self._request.cores) as pool:
            start = time.monotonic()
            for _ in range(self._request.epochs):
                epoch = EpochTimes(start, rows=self._request.rows)
                epoch.batches = self.run_epoch(pool)
                epoch.end = start = time.monotonic()
                times.append(epoch)
        return [TrainerResult(times, [])]

    def run_epoch(self, pool: ThreadPoolExecutor) -> int:
        """Do the work of one epoch; returns the number of its parts."""
        raise NotImplementedError


class Scan(Limit):
    """Row groups on a thread pool, each decoded by one thread from a memory map."""

    def run_epoch(self, pool: ThreadPoolExecutor) -> int:
        def scan(group: RowGroup) -> int:
            return int(_read_group(group, self._request.columns).num_rows)

        rows = list(pool.map(scan, _list_groups(self._request.paths)))
        if sum(rows) != self._request.rows:
            raise RuntimeError(f"the files have {sum(rows)} rows, not {self._request.rows}")
        return len(rows)


class TorchScan(OneTrainer):
    """Decodes a few row groups ahead; batches that lie within one row group are views."""

    def read_epoch(self, number: int) -> Iterable[Tensors]:
        def read(group: RowGroup) -> Tensors:
            return to_tensors(_read_group(group, self._request.columns), self._request.tensor_columns)

        tables = map_ahead(read, _list_groups(self._request.paths), self._request.cores)
        return cut_batches(tables, self._request.batch_size)


class FreshMemory(Limit):
    """Reads nothing: allocates blocks, writes one byte per page, and keeps all blocks until the end.

    The first epoch pays for first-touch page faults; later epochs write to the same pages.
    """

    def run(self) -> Sequence[TrainerResult]:
        """Time every epoch, the allocation included."""
        count = -(-_WINDOWS * self._request.decoded_bytes // _BLOCK_BYTES)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self._blocks = [mmap.mmap(-1, _BLOCK_BYTES, flags=flags) for _ in range(count)]
        return super().run()

    def run_epoch(self, pool: ThreadPoolExecutor) -> int:
        return len(list(pool.map(_touch, self._blocks)))


def _touch(block: mmap.mmap) -> None:
    np.frombuffer(block, np.uint8)[:: mmap.PAGESIZE] = 1


class RayStart(RayPeer, Limit):
    """Reads nothing and does not use windrow: an idle actor in place of the coordinator, tasks on all cores that
    put zeros into the object store, at least 1 MiB each, and one actor per trainer that reads each page of its share.

    The first epoch starts the processes and touches new pages of the object store; later epochs hardly do.
    """

    def prepare(self) -> None:
        import ray

        super().prepare()
        taker = ray.remote(num_cpus=0)(_Taker)
        self._takers = [taker.remote() for _ in range(self._request.trainers)]
        ray.get([taker.ready.remote() for taker in self._takers])

    def run(self) -> Sequence[TrainerResult]:
        import ray

        self._coordinator = ray.remote(num_cpus=0)(_Coordinator).remote()
        return super().run()

    def run_epoch(self, pool: ThreadPoolExecutor) -> int:
        """Fill and read the object store once, and keep no reference."""
        import ray

        stored = sum(Path(path).stat().st_size for path in self._request.paths)
        count = len(self._takers)
        tasks = max(1, min(_TASKS_EACH * self._request.cores, stored // _MIN_BYTES // count))
        share = max(_MIN_BYTES, -(-stored // (tasks * count)))
        put = ray.remote(num_cpus=1, num_returns=count)(_put)
        shares = [put.remote(share, count) for _ in range(tasks)]
        ray.get(self._coordinator.ready.remote())
        by_taker = [[own] for own in shares] if count == 1 else shares
        taken = [[outputs[at] for outputs in by_taker] for at in range(count)]
        pairs = zip(self._takers, taken, strict=True)
        if sum(ray.get([taker.take.remote(outputs) for taker, outputs in pairs])) < stored:
            raise RuntimeError("the object store returned fewer bytes than the files have")
        return tasks


class _Coordinator:
    async def ready(self) -> bool:
        return True


class _Taker:
    """A trainer that is started in advance."""

    def __init__(self) -> None:
        import_modules(*_IMPORTS)

    def ready(self) -> bool:
        return True

    def take(self, outputs: Sequence[Any]) -> int:
        import ray

        return sum(len(ray.get(output)[::_PAGE_BYTES].tobytes()) for output in outputs) * _PAGE_BYTES


def _put(size_bytes: int, count: int) -> Any:
    import_modules(*_IMPORTS)
    import numpy as np

    outputs = [np.zeros(size_bytes, np.uint8) for _ in range(count)]
    return outputs if count > 1 else outputs[0]
