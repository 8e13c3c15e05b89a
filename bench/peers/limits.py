"""Limits: what decoding, tensors, first touch of memory, and Ray itself take."""

from __future__ import annotations

import mmap
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.peers.base import OneTrainer, Peer, RayPeer
from bench.training.request import Request
from bench.training.tensors import TableToTensors, Tensors, cut_batches
from bench.training.trainer import EpochTimes, Progress, TrainerResult

_WINDOWS = 2
_BLOCK_BYTES = 16 * 2**20
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8}
_TEXT_BYTES = 16  # a guess: footers do not state it
_TASKS_EACH = 4
# smaller objects do not go to the object store
_MIN_BYTES = 2**20
_PAGE_BYTES = 4096
# imports that every process that reads Parquet needs
_IMPORTS = ("numpy", "pyarrow", "pyarrow.parquet")


class Scan(Peer):
    """Row groups on a thread pool, each decoded by one thread from a memory map."""

    def run(self) -> Sequence[TrainerResult]:
        """Scan all files once per epoch."""
        times: list[EpochTimes] = []
        start = time.monotonic()
        with ThreadPoolExecutor(self._request.cores) as pool:
            for number in range(self._request.epochs):
                times.append(self._scan(pool, EpochTimes(start)))
                start = times[-1].end
                self._progress(number, times[-1].rows)
        return [TrainerResult(times, [], [])]

    def _scan(self, pool: ThreadPoolExecutor, times: EpochTimes) -> EpochTimes:
        footers = list(pool.map(pq.read_metadata, self._request.paths))
        groups = [
            (path, footer, number)
            for path, footer in zip(self._request.paths, footers, strict=True)
            for number in range(footer.num_row_groups)
        ]
        for rows in pool.map(self._read, groups):
            times.first = times.first or time.monotonic()
            times.rows, times.batches = times.rows + rows, times.batches + 1
        times.end = time.monotonic()
        return times

    def _read(self, group: tuple[str, pq.FileMetaData, int]) -> int:
        path, footer, number = group
        with pq.ParquetFile(path, metadata=footer, memory_map=True, pre_buffer=False) as file:
            table = file.read_row_group(number, columns=list(self._request.columns), use_threads=False)
        return int(table.num_rows)


class TorchScan(OneTrainer):
    """Decodes a few row groups ahead; batches that lie within one row group are views."""

    def __init__(self, request: Request, progress: Progress) -> None:
        super().__init__(request, progress)
        self._convert = TableToTensors(request.tensor_columns)

    def run(self) -> Sequence[TrainerResult]:
        """Deliver all files once per epoch."""
        with ThreadPoolExecutor(self._request.cores) as pool:
            return [self._trainer.train(self._batches(pool) for _ in range(self._request.epochs))]

    def _batches(self, pool: ThreadPoolExecutor) -> Iterator[Tensors]:
        return cut_batches(self._tables(pool), self._request.batch_size)

    def _tables(self, pool: ThreadPoolExecutor) -> Iterator[Tensors]:
        ahead: deque[Future[Tensors]] = deque()
        for path, footer, number in self._groups():
            ahead.append(pool.submit(self._read, path, footer, number))
            if len(ahead) > 2 * self._request.cores:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()

    def _groups(self) -> Iterator[tuple[str, pq.FileMetaData, int]]:
        for path in self._request.paths:
            footer = pq.read_metadata(path)
            for number in range(footer.num_row_groups):
                yield path, footer, number

    def _read(self, path: str, footer: pq.FileMetaData, number: int) -> Tensors:
        with pq.ParquetFile(path, metadata=footer, memory_map=True, pre_buffer=False) as file:
            table: pa.Table = file.read_row_group(
                number, columns=list(self._request.columns), use_threads=False
            )
        return self._convert(table)


class FreshMemory(Peer):
    """Reads nothing: allocates blocks, writes one byte per page, and keeps all blocks until the end.

    The first epoch pays for first-touch page faults, which are expensive if a hypervisor has to provide
    the pages; later epochs write to the same pages.
    """

    def __init__(self, request: Request, progress: Progress) -> None:
        super().__init__(request, progress)
        self._blocks = 0

    def prepare(self) -> None:
        """Compute the decoded size from the footers."""
        columns = set(self._request.columns)
        footers = map(pq.read_metadata, self._request.paths)
        groups = (footer.row_group(number) for footer in footers for number in range(footer.num_row_groups))
        decoded = sum(
            group.num_rows * _WIDTHS.get(group.column(at).physical_type, _TEXT_BYTES)
            for group in groups
            for at in range(group.num_columns)
            if group.column(at).path_in_schema.split(".")[0] in columns
        )
        self._blocks = -(-_WINDOWS * decoded // _BLOCK_BYTES)

    def run(self) -> Sequence[TrainerResult]:
        """Touch all pages once per epoch."""
        times: list[EpochTimes] = []
        start = time.monotonic()
        held = [
            mmap.mmap(-1, _BLOCK_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            for _ in range(self._blocks)
        ]
        with ThreadPoolExecutor(self._request.cores) as pool:
            for number in range(self._request.epochs):
                epoch = EpochTimes(start)
                list(pool.map(_touch, held))
                epoch.first = epoch.end = start = time.monotonic()
                epoch.rows, epoch.batches = self._request.rows, len(held)
                times.append(epoch)
                self._progress(number, epoch.rows)
        return [TrainerResult(times, [], [])]


def _touch(block: mmap.mmap) -> None:
    np.frombuffer(block, np.uint8)[:: mmap.PAGESIZE] = 1


class RayStart(RayPeer):
    """Reads nothing and does not use windrow: an idle actor in place of the coordinator, tasks on all cores that
    put zeros into the object store, at least 1 MiB each, and one actor per trainer that reads each page of its share.

    The first epoch starts the processes, as every system on Ray must without idle workers, and touches new pages
    of the object store; later epochs hardly do. The trainers are started before the measured time.
    """

    def __init__(self, request: Request, progress: Progress) -> None:
        super().__init__(request, progress)
        self._takers: list[Any] = []

    def prepare(self) -> None:
        """Start Ray and the trainers."""
        import ray

        super().prepare()
        taker = ray.remote(num_cpus=0)(_Taker)
        self._takers = [taker.remote() for _ in range(self._request.trainers)]
        ray.get([taker.ready.remote() for taker in self._takers])

    def run(self) -> Sequence[TrainerResult]:
        """Fill and read the object store once per epoch."""
        import ray

        stored = sum(Path(path).stat().st_size for path in self._request.paths)
        tasks = max(1, min(_TASKS_EACH * self._request.cores, stored // _MIN_BYTES // len(self._takers)))
        share = max(_MIN_BYTES, -(-stored // (tasks * len(self._takers))))
        times: list[EpochTimes] = []
        start = time.monotonic()
        coordinator = ray.remote(num_cpus=0)(_Coordinator).remote()
        for number in range(self._request.epochs):
            epoch = EpochTimes(start)
            if self._fill(tasks, share, coordinator) < stored:
                raise RuntimeError("the object store returned fewer bytes than the files have")
            epoch.first = epoch.end = start = time.monotonic()
            epoch.rows, epoch.batches = self._request.rows, tasks
            times.append(epoch)
            self._progress(number, epoch.rows)
        return [TrainerResult(times, [], [])]

    def _fill(self, tasks: int, share: int, coordinator: Any) -> int:
        """Put and read everything once; returns its bytes, and keeps no reference."""
        import ray

        count = len(self._takers)
        put = ray.remote(num_cpus=1, num_returns=count)(_put)
        shares = [put.remote(share, count) for _ in range(tasks)]
        ray.get(coordinator.ready.remote())
        by_taker = [[own] for own in shares] if count == 1 else shares
        taken = [[outputs[at] for outputs in by_taker] for at in range(count)]
        pairs = zip(self._takers, taken, strict=True)
        return sum(ray.get([taker.take.remote(outputs) for taker, outputs in pairs]))


class _Coordinator:
    async def ready(self) -> bool:
        return True


class _Taker:
    """A trainer that is started in advance."""

    def __init__(self) -> None:
        _import_all()

    def ready(self) -> bool:
        return True

    def take(self, outputs: Sequence[Any]) -> int:
        import ray

        return sum(len(ray.get(output)[::_PAGE_BYTES].tobytes()) for output in outputs) * _PAGE_BYTES


def _put(size_bytes: int, count: int) -> Any:
    _import_all()
    import numpy as np

    outputs = [np.zeros(size_bytes, np.uint8) for _ in range(count)]
    return outputs if count > 1 else outputs[0]


def _import_all() -> None:
    import importlib

    for name in _IMPORTS:
        importlib.import_module(name)
