"""``python -m bench store``: epochs out of object storage, with latency and limited bandwidth."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import windrow
from bench.remote.s3_server import KEY, SECRET, NetworkConditions, Proxy, open_proxy, serve_folder
from bench.system.console import ProgressLine, add_data, add_names, add_turns, print_table
from bench.system.machine import count_cores, print_machine
from bench.system.ray_cluster import start_ray
from bench.throughput.options import BenchConfig, find_data
from windrow import DatasetPipeline

_NEAR = NetworkConditions()
_SETTINGS = {
    "near": _NEAR,
    "50 ms": NetworkConditions(latency_seconds=0.05),
    "50 MB/s": NetworkConditions(bytes_per_second=50e6),
}
_LATENCY_LEAST, _BANDWIDTH_LEAST = 0.7, 0.9
_HEADS = ("executor", "client", "store", "epoch s", "MB/s", "ratio")
_NOTE = (
    "epoch s: mean of all epochs but the first; MB/s: mean of the epochs between the first and the last; "
    "ratio: with latency, the epoch time without it over that with it; with a bandwidth "
    "limit, the throughput over the limit. Server, proxy and reader share the cores of this machine."
)
_BATCH_ROWS = 16_384


# seconds and bytes of each epoch; the first includes the start of the run
Timed = Sequence[tuple[float, int]]


def add_options(parser: argparse.ArgumentParser) -> None:
    add_data(parser, "600MB")
    add_names(parser, "--executors", ("threads", "ray"), help="where epochs run")
    add_names(parser, "--clients", ("s3fs", "arrow"), help="S3 clients to measure")
    add_turns(parser, rounds=2, epochs=4)


def run(options: argparse.Namespace) -> int:
    """Measure and print the table; the exit status is 0 if all ratios are high enough."""
    line = ProgressLine()
    paths = find_data(BenchConfig(size_bytes=options.size_bytes, folder=options.folder))
    print_machine()
    folder = Path(paths[0]).parent
    rows, broken = [], []
    with serve_folder(folder.parent.parent) as server, open_proxy(*server) as proxy:
        for executor in options.executors:
            with start_ray(2 * 2**30, count_cores()) if executor == "ray" else nullcontext():
                for client in options.clients:
                    line.start(f"{executor}, {client}")
                    timed = _measure(folder, proxy, client, executor, options)
                    line.finish("measured")
                    for name, runs in timed.items():
                        ratio, least = _find_ratio(_SETTINGS[name], runs, timed["near"])
                        cells = f"{_seconds(runs):.2f}", f"{_bytes_per_second(runs) / 1e6:.0f}"
                        rows.append((executor, client, name, *cells, f"{ratio:.2f}"))
                        if ratio < least:
                            broken.append(f"{executor}, {client}, {name}: {ratio:.2f}")
    asked = f"at least {_LATENCY_LEAST:g} with latency and {_BANDWIDTH_LEAST:g} of the bandwidth"
    verdict = f"{asked}: {'; '.join(broken) if broken else 'met'}"
    print_table(_HEADS, rows, ("executor", "client", "store"), _NOTE, verdict)
    return int(bool(broken))


def _measure(
    folder: Path, proxy: Proxy, client: str, executor: str, options: argparse.Namespace
) -> dict[str, list[Timed]]:
    """Measure the settings in turn, because the speed of the machine drifts; an initial run warms up."""
    proxy.set(_NEAR)
    warm, pipe = (_open_pipe(folder, proxy.endpoint, client, executor, n) for n in (1, options.epochs))
    _time_epochs(warm, proxy, _NEAR)
    timed: dict[str, list[Timed]] = {name: [] for name in _SETTINGS}
    for _ in range(options.rounds):
        for name, conditions in _SETTINGS.items():
            timed[name].append(_time_epochs(pipe, proxy, conditions))
    return timed


def _seconds(runs: Sequence[Timed]) -> float:
    """Of the epochs but the first; during each, windows of the next are prefetched."""
    return statistics.median(statistics.fmean(seconds for seconds, _ in run[1:] or run) for run in runs)


def _bytes_per_second(runs: Sequence[Timed]) -> float:
    """Throughput of the epochs in which the store is read without a pause: not the first and not the last."""
    middle = [epoch for run in runs for epoch in run[1:-1] or run]
    return sum(traffic for _, traffic in middle) / sum(seconds for seconds, _ in middle)


def _find_ratio(
    conditions: NetworkConditions, runs: Sequence[Timed], near: Sequence[Timed]
) -> tuple[float, float]:
    """What was reached, and the least that is asked."""
    if conditions.bytes_per_second:
        return _bytes_per_second(runs) / conditions.bytes_per_second, _BANDWIDTH_LEAST
    return _seconds(near) / _seconds(runs), _LATENCY_LEAST


def _open_pipe(folder: Path, endpoint: str, client: str, executor: str, epochs: int) -> DatasetPipeline:
    given: dict[str, Any] = {"target_block_bytes": "16MiB"}
    path = f"{folder.parent.name}/{folder.name}"
    if client == "arrow":
        import pyarrow.fs as pa_fs

        given["filesystem"] = pa_fs.S3FileSystem(
            access_key=KEY,
            secret_key=SECRET,
            endpoint_override=endpoint.removeprefix("http://"),
            scheme="http",
            region="us-east-1",
        )
    else:
        given["storage_options"] = {
            "key": KEY,
            "secret": SECRET,
            "endpoint_url": endpoint,
            "client_kwargs": {"region_name": "us-east-1"},
        }
        path = f"s3://{path}"
    pipe = windrow.read_parquet(path, **given).window(bytes_per_window="150MB")
    return pipe.repeat(epochs).random_shuffle_each_window(seed=7).options(executor=executor, progress=False)


def _time_epochs(pipe: DatasetPipeline, proxy: Proxy, conditions: NetworkConditions) -> Timed:
    proxy.set(conditions)
    timed, at = [], time.perf_counter()
    with pipe.iterator() as shard:
        for epoch in shard.iter_epochs():
            for _ in epoch.iter_batches(_BATCH_ROWS):
                pass
            now = time.perf_counter()
            timed.append((now - at, proxy.set(conditions)))
            at = now
    return timed
