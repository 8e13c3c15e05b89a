"""The systems of ``preparation``, each in a process of its own."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from multiprocessing import get_context
from typing import Any

import windrow
from bench.preparation.work import PARTS, Taken, load_rows, prepare, take
from bench.shapes.systems import make_trainers
from bench.system.machine import count_cores
from bench.system.processes import read_tree_cpu_seconds
from bench.system.ray_cluster import start_ray

_BATCH_ROWS = 64
_WINDOW_BLOCKS = 8
# what `map_batches` gets for --compute; the tasks that read need a CPU too
COMPUTE: Mapping[str, Mapping[str, Any]] = {
    "none": {},
    "processes": {"compute": "processes"},
    "pool": {"compute": windrow.ActorPool(count_cores()), "num_cpus": 0},
}

Request = Mapping[str, Any]
# reads an epoch, with steps of some seconds, and returns what each trainer got
Read = Callable[[float], list[Taken]]


@contextmanager
def _read_bare(make_worker: Callable[[], Executor], request: Request) -> Iterator[Read]:
    """A worker a core, each with its share of the rows in memory."""
    with ExitStack() as stack:
        workers = [stack.enter_context(make_worker()) for _ in range(count_cores())]

        def read(step_seconds: float) -> list[Taken]:
            taken = [worker.submit(_take_share, request, share) for share, worker in enumerate(workers)]
            return [each.result() for each in taken]

        yield read


def _take_share(request: Request, share: int) -> Taken:
    rows, arguments = load_rows(request["folder"])[share :: count_cores()], _name_work(request)
    parts = (rows[at : at + _BATCH_ROWS] for at in range(0, len(rows), _BATCH_ROWS))
    return take(prepare({"data": part}, **arguments) for part in parts)


def _name_work(request: Request) -> dict[str, str]:
    return {"part": request["part"], "folder": request["folder"]}


class _Rows:
    def __init__(self, part: str, folder: str) -> None:
        self._prepare, self._folder, self._rows = PARTS[part], folder, load_rows(folder)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, at: int) -> dict[str, Any]:
        return {"values": self._prepare(self._rows[at], self._folder)}


@contextmanager
def _read_torch(request: Request) -> Iterator[Read]:
    from torch.utils.data import DataLoader

    rows: Any = _Rows(**_name_work(request))
    workers = count_cores()
    loader = DataLoader(rows, _BATCH_ROWS, shuffle=True, num_workers=workers, persistent_workers=True)
    yield lambda step_seconds: [take(loader, step_seconds)]


def _describe_function(request: Request) -> dict[str, Any]:
    """What `map_batches` gets, of windrow and of Ray Data."""
    return {"fn": prepare, "fn_kwargs": _name_work(request), "batch_size": _BATCH_ROWS}


@contextmanager
def _read_windrow(executor: str, request: Request) -> Iterator[Read]:
    dataset = windrow.read_parquet(request["folder"]).window(blocks_per_window=_WINDOW_BLOCKS)
    # the epoch after the last keeps prefetching as it was
    epochs = 2 + request["epochs"] * (1 + request["work"])
    function = {**_describe_function(request), **COMPUTE[request["compute"]]}
    is_before = request["place"] == "before"
    repeated = (dataset.map_batches(**function) if is_before else dataset).repeat(epochs)
    shuffled = repeated.random_shuffle_each_window(seed=7)
    pipe = shuffled if is_before else shuffled.map_batches(**function)
    trainers = make_trainers(executor, request["trainers"])
    pipe = pipe.options(executor=executor, progress=False)
    shards = pipe.split(request["trainers"], locality_hints=trainers.handles)
    try:
        yield lambda step_seconds: [
            taken for _, taken in trainers.read(shards, 1, partial(_take_epoch, step_seconds))
        ]
    finally:
        trainers.close(shards)


def _take_epoch(step_seconds: float, epoch: windrow.Epoch) -> Taken:
    return take(epoch.iter_torch_batches(batch_size=_BATCH_ROWS), step_seconds)


@contextmanager
def _read_ray_data(request: Request) -> Iterator[Read]:
    import ray.data

    ray.data.DataContext.get_current().enable_progress_bars = False
    dataset = ray.data.read_parquet(request["folder"], file_extensions=["parquet"])
    # before its shuffle, which holds all rows, the function would make them several times as large
    prepared = dataset.random_shuffle().map_batches(**_describe_function(request))
    yield lambda step_seconds: [take(prepared.iter_torch_batches(batch_size=_BATCH_ROWS), step_seconds)]


SYSTEMS: Mapping[str, Callable[[Request], AbstractContextManager[Read]]] = {
    "processes": partial(_read_bare, partial(ProcessPoolExecutor, 1, mp_context=get_context("spawn"))),
    "threads": partial(_read_bare, partial(ThreadPoolExecutor, 1)),
    "torch": _read_torch,
    "windrow-threads": partial(_read_windrow, "threads"),
    "windrow-ray": partial(_read_windrow, "ray"),
    "ray": _read_ray_data,
}


def measure(name: str, request: Request) -> dict[str, Any]:
    """The seconds of an epoch after the first, what it gave, and the share that trainers wait with slow steps."""
    with SYSTEMS[name](request) as read:
        read(0.0)
        before = read_tree_cpu_seconds()
        seconds, taken = _read_epochs(read, request["epochs"], 0.0)
        found = {
            "seconds": statistics.mean(seconds),
            "cpu_seconds": (read_tree_cpu_seconds() - before) / request["epochs"],
            "rows": sum(each.rows for each in taken) / request["epochs"],
            "total": sum(each.total for each in taken) / request["epochs"],
        }
        if request["work"] and name not in ("processes", "threads"):
            batches = -(-found["rows"] // (request["trainers"] * _BATCH_ROWS))
            # the slowest epoch, because the speed of a machine varies
            spent, taken = _read_epochs(read, request["epochs"], max(seconds) / batches)
            found["waited"] = sum(each.waited_seconds for each in taken) / request["trainers"] / sum(spent)
    return found


def _read_epochs(read: Read, epochs: int, step_seconds: float) -> tuple[list[float], list[Taken]]:
    seconds, taken = [], []
    for _ in range(epochs):
        began = time.perf_counter()
        taken += read(step_seconds)
        seconds.append(time.perf_counter() - began)
    return seconds, taken


def start(name: str, store_bytes: int) -> Callable[[Request], dict[str, Any]]:
    if name.endswith("ray"):
        start_ray(store_bytes, count_cores())
    return partial(measure, name)
