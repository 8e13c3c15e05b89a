"""A limit of first epochs on Ray: the processes that one needs, and as many bytes of the store as the files have."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.account import Account
from bench.ray_session import start_ray
from bench.request import Request
from bench.store import StoreWatch
from bench.trainer import EpochTimes, Progress, TrainerResult

__all__ = ["RayStart"]

_TASKS_EACH = 4
# smaller objects do not go to the store
_MIN_BYTES = 2**20
_PAGE_BYTES = 4096
# what a process that reads Parquet cannot do without
_IMPORTS = ("numpy", "pyarrow", "pyarrow.parquet")


class RayStart:
    """Nothing is read, and nothing of windrow runs: an actor that coordinates nobody, tasks on all cores that
    put zeros into the store, at least 1 MiB each, and one actor a trainer that looks at each page of its share.

    The first epoch starts the processes, as all systems on Ray have to that find no idle ones, and writes to pages
    of the store that nobody has used; later ones hardly do. The trainers are there before the clock starts.
    """

    def __init__(self, request: Request, progress: Progress) -> None:
        self._request = request
        self._progress = progress
        self._takers: list[Any] = []
        self._store: StoreWatch | None = None

    def prepare(self) -> None:
        """Start Ray and the trainers."""
        import ray

        self._store = start_ray(self._request)
        taker = ray.remote(num_cpus=0)(_Taker)
        self._takers = [taker.remote() for _ in range(self._request.trainers)]
        ray.get([taker.ready.remote() for taker in self._takers])

    def run(self) -> Sequence[TrainerResult]:
        """Fill and look at the store once an epoch."""
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
                raise RuntimeError("less was found in the store than the files have")
            epoch.first = epoch.end = start = time.monotonic()
            epoch.rows, epoch.batches = self._request.rows, tasks
            times.append(epoch)
            self._progress(number, epoch.rows)
        return [TrainerResult(times, [], [])]

    def _fill(self, tasks: int, share: int, coordinator: Any) -> int:
        """Put and look at everything once, and tell its bytes; nothing refers to it when this returns."""
        import ray

        count = len(self._takers)
        put = ray.remote(num_cpus=1, num_returns=count)(_put)
        shares = [put.remote(share, count) for _ in range(tasks)]
        ray.get(coordinator.ready.remote())
        by_taker = [[own] for own in shares] if count == 1 else shares
        taken = [[outputs[at] for outputs in by_taker] for at in range(count)]
        pairs = zip(self._takers, taken, strict=True)
        return sum(ray.get([taker.take.remote(outputs) for taker, outputs in pairs]))

    def account(self) -> Account:
        """What Ray tells of its store."""
        return Account(store=self._store.end() if self._store else None)

    def close(self) -> None:
        """Stop Ray."""
        import ray

        ray.shutdown()


class _Coordinator:
    async def ready(self) -> bool:
        return True


class _Taker:
    """A trainer that is there already."""

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
