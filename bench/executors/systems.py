"""Several trainers on one executor, in a process of its own: ``python -m bench.executors.systems NAME``.

The process reads a request a line as JSON, and prints the result as JSON.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import windrow
from bench.system.processes import answer_requests, list_tree, read_cpu_seconds
from bench.system.ray_cluster import start_ray

BATCH_ROWS = 8_192
# the first epoch touches memory for the first time and fills a cache, the second one is the first from it
_WARM_EPOCHS = 2

# what processes are part of, by what their command lines contain
OTHER = "other processes of Ray"
PARTS = {
    "ray::Coordinator": "coordinator",
    "ray::_Trainer": "trainers",
    "ray::": "map workers",
    "raylet/raylet": "raylet with the object store",
    "gcs_server": "GCS",
    "bench.executors.systems": "the process itself",
}


class Trainer:
    """Takes batches as fast as it can."""

    def __init__(self) -> None:
        self._epochs: Iterator[windrow.Epoch] | None = None

    def read(self, shard: windrow.Shard, epochs: int) -> float:
        """Read some epochs; returns the time at which the last one ended."""
        if self._epochs is None:
            self._epochs = shard.iter_epochs()
        for _ in range(epochs):
            for batch in next(self._epochs).iter_batches(batch_size=BATCH_ROWS, batch_format="pyarrow"):
                del batch
        return time.time()


def name_process(command: str) -> str:
    """What a process with this command line is part of.

    >>> name_process("ray::_Trainer.read"), name_process("ray::IDLE"), name_process("python monitor.py")
    ('trainers', 'map workers', 'other processes of Ray')
    """
    return next((part for text, part in PARTS.items() if text in command), OTHER)


class _Threads:
    """Trainers as threads of this process."""

    def __init__(self, trainers: int) -> None:
        self._trainers = [Trainer() for _ in range(trainers)]
        self.handles = None

    def read(self, shards: Sequence[windrow.Shard], epochs: int) -> float:
        ends: list[float] = []

        def read(trainer: Trainer, shard: windrow.Shard) -> None:
            ends.append(trainer.read(shard, epochs))

        pairs = zip(self._trainers, shards, strict=True)
        threads = [threading.Thread(target=read, args=pair) for pair in pairs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if len(ends) < len(threads):
            raise RuntimeError("a trainer failed; its error is in the log")
        return max(ends)

    def close(self, shards: Sequence[windrow.Shard]) -> None:
        for shard in shards:
            shard.close()


class _Actors:
    """Trainers as actors of Ray."""

    def __init__(self, trainers: int) -> None:
        import ray

        class _Trainer(Trainer):
            def close(self, shard: windrow.Shard) -> None:
                self._epochs = None
                shard.close()

        actor = ray.remote(num_cpus=0)(_Trainer)
        self.handles: Any = [actor.remote() for _ in range(trainers)]

    def read(self, shards: Sequence[windrow.Shard], epochs: int) -> float:
        import ray

        pairs = zip(self.handles, shards, strict=True)
        return max(ray.get([handle.read.remote(shard, epochs) for handle, shard in pairs]))

    def close(self, shards: Sequence[windrow.Shard]) -> None:
        import ray

        ray.get([handle.close.remote(shard) for handle, shard in zip(self.handles, shards, strict=True)])
        for handle in self.handles:
            ray.kill(handle)


def _measure(request: dict[str, Any], executor: str) -> dict[str, Any]:
    """Seconds of an epoch, and the CPU seconds of an epoch by the part of the system."""
    epochs, trainers = request["epochs"], (_Actors if executor == "ray" else _Threads)(request["trainers"])
    dataset: windrow.Dataset | windrow.DatasetPipeline = windrow.read_parquet(request["paths"])
    if request["window"]:
        dataset = dataset.window(bytes_per_window=request["window"])
    # the one after the last keeps prefetching as it was
    pipe = dataset.repeat(_WARM_EPOCHS + epochs + 1).random_shuffle_each_window(seed=7)
    pipe = pipe.options(executor=executor, cache=request["cache"])
    shards = pipe.split(request["trainers"], equal=True, locality_hints=trainers.handles)
    try:
        began = trainers.read(shards, _WARM_EPOCHS)
        before = _cpu_seconds()
        ended = trainers.read(shards, epochs)
        after = _cpu_seconds()
    finally:
        trainers.close(shards)
    spent: Counter[str] = Counter()
    for process, (name, seconds) in after.items():
        spent[name] += (seconds - before.get(process, (name, 0.0))[1]) / epochs
    return {"seconds": (ended - began) / epochs, "cpu_seconds": dict(spent)}


def _cpu_seconds() -> dict[int, tuple[str, float]]:
    """By process of this tree, its part and the CPU seconds that it has used."""
    found = {}
    for process in list_tree(os.getpid()):
        try:
            command = re.sub(r"\0+", " ", Path(f"/proc/{process}/cmdline").read_text())
        except OSError:
            continue
        found[process] = name_process(command), read_cpu_seconds(process)
    return found


def _start(executor: str) -> Callable[[Any], dict[str, Any]]:
    if executor == "ray":
        start_ray(int(os.environ["WINDROW_BENCH_STORE_BYTES"]))
    return lambda request: _measure(request, executor)


if __name__ == "__main__":
    answer_requests(lambda: _start(sys.argv[1]))
