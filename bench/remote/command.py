"""``python -m bench store``: epochs out of object storage, with latency and limited bandwidth."""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import windrow
from bench.remote.s3_server import (
    KEY,
    SECRET,
    NetworkConditions,
    Proxy,
    Traffic,
    make_storage_options,
    open_proxy,
    serve_folder,
)
from bench.system.console import ProgressLine, align_table, read_size
from bench.system.machine import count_cores, describe_machine
from bench.system.ray_cluster import start_ray
from bench.throughput.options import BenchConfig, find_data
from windrow import DatasetPipeline

_LATENCY_LEAST, _BANDWIDTH_LEAST = 0.7, 0.9
_HEADS = ("executor", "client", "store", "first batch s", "epoch s", "MB/s", "requests", "at once", "ratio")
_NOTE = (
    "epoch s: mean of all epochs but the first; MB/s: mean of the epochs between the first and the last; "
    "requests: per epoch; ratio: with latency, the epoch time without it over that with it; with a bandwidth "
    "limit, the throughput over the limit. Server, proxy and reader share the cores of this machine."
)
_BATCH_ROWS = 16_384


@dataclass(frozen=True)
class _Setting:
    name: str
    conditions: NetworkConditions


_SETTINGS = (
    _Setting("near", NetworkConditions()),
    _Setting("50 ms", NetworkConditions(latency_seconds=0.05)),
    _Setting("50 MB/s", NetworkConditions(bytes_per_second=50e6)),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", default="600MB", help="decoded size of the data")
    parser.add_argument("--executors", default="threads,ray", help="executors to measure")
    parser.add_argument("--clients", default="s3fs,arrow", help="S3 clients to measure")
    parser.add_argument("--epochs", type=int, default=4, help="epochs of a run")
    parser.add_argument("--rounds", type=int, default=2, help="number of times that all settings run in turn")


def run(options: argparse.Namespace) -> int:
    """Measure and print the table; the exit status is 0 if all ratios are high enough."""
    line = ProgressLine(sys.stderr)
    paths = find_data(BenchConfig(size_bytes=read_size(options.size, "--size")), line)
    folder = Path(paths[0]).parent
    rows, broken = [], []
    with serve_folder(folder.parent.parent) as server, open_proxy(server.host, server.port) as proxy:
        for executor in options.executors.split(","):
            with _running(executor):
                for client in options.clients.split(","):
                    reading = Reading(client, executor, options.epochs)
                    line.start(f"{executor}, {client}")
                    timed = _measure(folder, proxy, reading, options.rounds)
                    line.finish("measured")
                    for setting, runs in zip(_SETTINGS, timed, strict=True):
                        ratio = _ratio(setting, runs, timed[0])
                        rows.append(_write_line(reading, setting, runs, ratio))
                        if ratio is not None and ratio < _least(setting):
                            broken.append(f"{executor}, {client}, {setting.name}: {ratio:.2f}")
    print(describe_machine())
    print(align_table(_HEADS, rows, ("executor", "client", "store")))
    print(_NOTE)
    least = f"{_LATENCY_LEAST:g} with latency and {_BANDWIDTH_LEAST:g} of the bandwidth"
    print(f"at least {least}: {'; '.join(broken) if broken else 'met'}")
    return int(bool(broken))


@contextmanager
def _running(executor: str) -> Iterator[None]:
    if executor != "ray":
        yield
        return
    import ray

    start_ray(2 * 2**30, count_cores(), frees_early=False)
    try:
        yield
    finally:
        ray.shutdown()


def _measure(folder: Path, proxy: Proxy, reading: Reading, rounds: int) -> list[list[Timed]]:
    """Measure the settings in turn, because the speed of the machine drifts; an initial run warms up."""
    proxy.set(NetworkConditions())
    pipe = open_pipe(folder, proxy.endpoint, reading)
    time_epochs(open_pipe(folder, proxy.endpoint, replace(reading, epochs=1)), proxy, NetworkConditions())
    timed: list[list[Timed]] = [[] for _ in _SETTINGS]
    for _ in range(rounds):
        for setting, runs in zip(_SETTINGS, timed, strict=True):
            runs.append(time_epochs(pipe, proxy, setting.conditions))
    return timed


def _seconds(runs: Sequence[Timed]) -> float:
    return statistics.median(run.later_seconds for run in runs)


def _bytes_per_second(runs: Sequence[Timed]) -> float:
    """Throughput of the epochs in which the store is read without a pause: not the first and not the last."""
    middle = [(run.traffic[1:-1] or run.traffic, run.seconds[1:-1] or run.seconds) for run in runs]
    traffic = sum(each.answer_bytes for some, _ in middle for each in some)
    return traffic / sum(sum(seconds) for _, seconds in middle)


def _ratio(setting: _Setting, runs: Sequence[Timed], near: Sequence[Timed]) -> float | None:
    if setting.conditions.bytes_per_second:
        return _bytes_per_second(runs) / setting.conditions.bytes_per_second
    return _seconds(near) / _seconds(runs) if setting.conditions.latency_seconds else None


def _least(setting: _Setting) -> float:
    return _BANDWIDTH_LEAST if setting.conditions.bytes_per_second else _LATENCY_LEAST


def _write_line(
    reading: Reading, setting: _Setting, runs: Sequence[Timed], ratio: float | None
) -> tuple[str, ...]:
    seconds = _seconds(runs)
    requests = sum(traffic.requests for run in runs for traffic in run.traffic)
    return (
        reading.executor,
        reading.client,
        setting.name,
        f"{statistics.median(run.first_batch_seconds for run in runs):.2f}",
        f"{seconds:.2f}",
        f"{_bytes_per_second(runs) / 1e6:.0f}",
        f"{requests / sum(len(run.traffic) for run in runs):.0f}",
        f"{max(traffic.max_concurrent for run in runs for traffic in run.traffic)}",
        "-" if ratio is None else f"{ratio:.2f}",
    )


@dataclass(frozen=True)
class Reading:
    client: str
    executor: str
    epochs: int


@dataclass(frozen=True)
class Timed:
    """Seconds and traffic of each epoch; the first includes the start of the run."""

    first_batch_seconds: float
    seconds: tuple[float, ...]
    traffic: tuple[Traffic, ...]

    @property
    def later_seconds(self) -> float:
        """Mean over the epochs without the first; during each, windows of the next are prefetched."""
        later = self.seconds[1:] or self.seconds
        return sum(later) / len(later)


def open_pipe(folder: Path, endpoint: str, reading: Reading) -> DatasetPipeline:
    given: dict[str, Any] = {"target_block_bytes": "16MiB"}
    path = f"{folder.parent.name}/{folder.name}"
    if reading.client == "arrow":
        import pyarrow.fs as pa_fs

        given["filesystem"] = pa_fs.S3FileSystem(
            access_key=KEY,
            secret_key=SECRET,
            endpoint_override=endpoint.removeprefix("http://"),
            scheme="http",
            region="us-east-1",
        )
    else:
        given["storage_options"] = make_storage_options(endpoint)
        path = f"s3://{path}"
    pipe = windrow.read_parquet(path, **given).window(bytes_per_window="150MB")
    pipe = pipe.repeat(reading.epochs).random_shuffle_each_window(seed=7)
    return pipe.options(executor=reading.executor, progress=False)


def time_epochs(pipe: DatasetPipeline, proxy: Proxy, conditions: Any) -> Timed:
    proxy.set(conditions)
    seconds, traffic, first = [], [], 0.0
    began = at = time.perf_counter()
    with pipe.iterator() as shard:
        for epoch in shard.iter_epochs():
            for _ in epoch.iter_batches(_BATCH_ROWS):
                first = first or time.perf_counter() - began
            now = time.perf_counter()
            seconds.append(now - at)
            traffic.append(proxy.set(conditions))
            at = now
    return Timed(first, tuple(seconds), tuple(traffic))
