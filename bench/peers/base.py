"""The adapter interface, and what most rivals share: one consumer, converted files, rows one by one."""

from __future__ import annotations

import importlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from bench.data.files import make_once
from bench.peers.names import BUFFER_SHARE, PEERS
from bench.system.ray_cluster import ObjectStoreUse, read_spilled, start_ray
from bench.training.facts import is_list, iterate_tables
from bench.training.request import Request
from bench.training.tensors import to_tensors
from bench.training.trainer import Trainer, TrainerResult

if TYPE_CHECKING:
    from windrow.pipeline.plan.window_budget import Budget

T = TypeVar("T")
R = TypeVar("R")
# shards of converted data: the number of row groups of the sample
SHARDS = 64


class Peer:
    """Adapter of one system; created with a request, and used once in its own process."""

    # windrow's, known once it runs
    estimate: Budget | None = None

    def __init__(self, request: Request) -> None:
        self._request = request

    def prepare(self) -> None:
        """Import libraries, start sessions and actors; the idle memory is measured after this."""

    def run(self) -> Sequence[TrainerResult]:
        """Deliver every epoch; the measured time starts with this call."""
        raise NotImplementedError

    def read_store(self) -> ObjectStoreUse | None:
        """The use of Ray's object store, before ``close``."""
        return None

    def close(self) -> None:
        """Stop everything that ``prepare`` started."""


class RayPeer(Peer):
    """Adapter of a system on a Ray of its own, with as many CPUs as the scan uses."""

    def prepare(self) -> None:
        context = start_ray(self._request.object_store_bytes, self._request.cores)
        self._session = Path(context.address_info["session_dir"])

    def read_store(self) -> ObjectStoreUse | None:
        return ObjectStoreUse(self._request.object_store_bytes, read_spilled(self._session))

    def close(self) -> None:
        import ray

        ray.shutdown()


def load_peer(request: Request) -> Peer:
    module, _, name = PEERS[request.system].adapter.partition(":")
    return cast(Peer, getattr(importlib.import_module(module), name)(request))


def import_modules(*names: str) -> None:
    """Import what is loaded lazily, so that the idle memory includes it."""
    for name in names:
        importlib.import_module(name)


class OneTrainer(Peer):
    """Subclasses define the preparation and the batches of an epoch."""

    libraries: tuple[str, ...] = ()

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        self._trainer = Trainer(request)

    @property
    def buffer_rows(self) -> int:
        """Rows of the shuffle buffer of a rival that has one."""
        return max(1, self._request.rows // BUFFER_SHARE)

    def prepare(self) -> None:
        """Import the library; torch gets one thread, because its short operations are slower with several."""
        import torch

        torch.set_num_threads(1)
        import_modules(*self.libraries)

    def run(self) -> Sequence[TrainerResult]:
        return [self._trainer.train(self.read_epoch(number) for number in range(self._request.epochs))]

    def convert_table(self, table: Any) -> Any:
        """Arrow as tensors, or as it is if there are lists and strings."""
        return to_tensors(table) if self._request.content is None else table

    def read_epoch(self, number: int) -> Iterable[Any]:
        raise NotImplementedError


def iterate_rows(paths: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Every row as a dict of Python numbers and strings, and of arrays for lists."""
    for table in iterate_tables(paths):
        columns = [
            column.to_numpy() if is_list(column.type) else column.to_pylist() for column in table.columns
        ]
        for values in zip(*columns, strict=True):
            yield dict(zip(table.column_names, values, strict=True))


def map_ahead(function: Callable[[T], R], items: Iterable[T], threads: int) -> Iterator[R]:
    """The results of a function in order, twice as many ahead as there are threads."""
    ahead: deque[Future[R]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        for item in items:
            ahead.append(pool.submit(function, item))
            if len(ahead) > 2 * threads:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()


def convert_once(request: Request, convert: Callable[[Path], None]) -> Path:
    return make_once(Path(request.converted) / request.system, convert)


def load_by_workers(dataset: Any, request: Request, **options: Any) -> Any:
    """Batches of a dataset of row dicts, collated by one worker process per core."""
    from torch.utils.data import DataLoader

    return DataLoader(
        dataset,
        batch_size=request.batch_size,
        num_workers=request.cores,
        prefetch_factor=4,
        collate_fn=choose_collate(request),
        **options,
    )


def choose_collate(request: Request) -> Callable[[Any], Any] | None:
    """None for torch's own function, which stacks numbers; lists of several lengths cannot be stacked."""
    return None if request.content is None else collate_rows


def collate_rows(rows: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    return {name: [row[name] for row in rows] for name in rows[0]}
