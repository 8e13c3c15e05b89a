"""A limit of first epochs on Ray: process start, and first touch of as much object store as the files take."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.object_store import ObjectStoreMonitor
from bench.ray_session import start_ray
from bench.request import Request
from bench.run_details import RunDetails
from bench.trainer import EpochTimes, Progress, TrainerResult

__all__ = ["RayStart"]

_TASKS_EACH = 4
# smaller objects do not go to the object store
_MIN_BYTES = 2**20
_PAGE_BYTES = 4096
# imports that every process that reads Parquet needs
_IMPORTS = ("numpy", "pyarrow", "pyarrow.parquet")


class RayStart:
    """Reads nothing and does not use windrow: an idle actor in place of the coordinator, tasks on all cores that
    put zeros into the object store, at least 1 MiB each, and one actor per trainer that reads each page of its share.

    The first epoch starts the processes, as every system on Ray must without idle workers, and touches new pages
    of the object store; later epochs hardly do. The trainers are started before the measured time.
    """

    def __init__(self, request: Request, progress: Progress) -> None:
        self._request = request
        self._progress = progress
        self._takers: list[Any] = []
        self._store: ObjectStoreMonitor | None = None

    def prepare(self) -> None:
        """Start Ray and the trainers."""
        import ray

        self._store = start_ray(self._request)
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

    def details(self) -> RunDetails:
        """Report the use of the object store."""
        return RunDetails(store=self._store.end() if self._store else None)

    def close(self) -> None:
        """Stop Ray."""
        import ray

        ray.shutdown()


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
