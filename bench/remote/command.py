"""``python -m bench store``: what distance to a store costs an epoch."""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from bench.asked import Asked, find_data
from bench.machine import count_cores, describe_machine
from bench.progress import ProgressLine
from bench.remote.distance import Distance, Proxy, open_proxy
from bench.remote.epochs import Reading, Timed, open_pipe, time_epochs
from bench.remote.server import serve_folder
from bench.sizes import read_size
from bench.table import align_table

__all__ = ["add_store", "measure_store"]

_LATENCY_LEAST, _BANDWIDTH_LEAST = 0.7, 0.9
_HEADS = ("executor", "client", "store", "first batch s", "epoch s", "MB/s", "requests", "at once", "ratio")
_NOTE = (
    "epoch s: the mean of all epochs but the first; MB/s: of those between the first and the last; requests: "
    "of an epoch; ratio: with latency, of the epoch without; with a bandwidth limit, of the limit. "
    "Server, proxy and reader share this machine's cores."
)


@dataclass(frozen=True)
class _Setting:
    name: str
    distance: Distance


def add_store(parser: argparse.ArgumentParser) -> None:
    """Options of ``store``."""
    parser.add_argument("--size", default="600MB", help="decoded bytes of the data (default: %(default)s)")
    parser.add_argument("--executors", default="threads,ray", help="(default: %(default)s)")
    parser.add_argument("--clients", default="s3fs,arrow", help="(default: %(default)s)")
    parser.add_argument("--latency", type=float, default=50.0, help="added milliseconds (%(default)s)")
    parser.add_argument("--bandwidth", default="50MB", help="a second, as a limit (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=4, help="of a run (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=2, help="all settings in turn (default: %(default)s)")
    parser.add_argument("--window", default="150MB", help="bytes of a window (default: %(default)s)")
    parser.add_argument("--block", default="16MiB", help="join row groups up to this (default: %(default)s)")
    parser.add_argument("--columns", metavar="A,B", help="only these (default: all)")
    parser.add_argument("--cache", choices=("memory", "disk"), help="(default: nowhere)")


def measure_store(options: argparse.Namespace, asked: Asked) -> int:
    """Measure, print the table; 0 when the ratios hold."""
    line = ProgressLine(sys.stderr)
    paths = find_data(replace(asked, size_bytes=read_size(options.size, "--size")), line)
    folder = Path(paths[0]).parent
    settings = _settings(options)
    rows, broken = [], []
    with serve_folder(folder.parent.parent) as server, open_proxy(server.host, server.port) as proxy:
        for executor in options.executors.split(","):
            with _running(executor):
                for client in options.clients.split(","):
                    reading = _reading(options, client, executor)
                    line.start(f"{executor}, {client}")
                    timed = _measure(folder, proxy, reading, settings, options.rounds)
                    line.finish("measured")
                    for setting, runs in zip(settings, timed, strict=True):
                        ratio = _ratio(setting, runs, timed[0])
                        rows.append(_write_line(reading, setting, runs, ratio))
                        if ratio is not None and ratio < _least(setting):
                            broken.append(f"{executor}, {client}, {setting.name}: {ratio:.2f}")
    print(describe_machine())
    print(align_table(_HEADS, rows, ("executor", "client", "store")))
    print(_NOTE)
    least = f"{_LATENCY_LEAST:g} with latency and {_BANDWIDTH_LEAST:g} of the bandwidth"
    print(f"at least {least}: {'; '.join(broken) if broken else 'kept'}")
    return int(bool(broken))


def _settings(options: argparse.Namespace) -> list[_Setting]:
    rate = read_size(options.bandwidth, "--bandwidth")
    return [
        _Setting("near", Distance()),
        _Setting(f"{options.latency:g} ms", Distance(latency_seconds=options.latency / 1e3)),
        _Setting(f"{rate / 1e6:g} MB/s", Distance(bytes_per_second=rate)),
    ]


def _reading(options: argparse.Namespace, client: str, executor: str) -> Reading:
    columns = tuple(options.columns.split(",")) if options.columns else None
    return Reading(client, executor, options.epochs, options.window, columns, options.cache, options.block)


@contextmanager
def _running(executor: str) -> Iterator[None]:
    if executor != "ray":
        yield
        return
    import ray

    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "error"}
    ray.init(address="local", num_cpus=count_cores(), object_store_memory=2 * 2**30, **quiet)
    try:
        yield
    finally:
        ray.shutdown()


def _measure(
    folder: Path, proxy: Proxy, reading: Reading, settings: Sequence[_Setting], rounds: int
) -> list[list[Timed]]:
    """The settings in turn, since all of them move with the machine; one run before warms it up."""
    proxy.set(Distance())
    pipe = open_pipe(folder, proxy.endpoint, reading)
    time_epochs(open_pipe(folder, proxy.endpoint, replace(reading, epochs=1)), proxy, Distance())
    timed: list[list[Timed]] = [[] for _ in settings]
    for _ in range(rounds):
        for setting, runs in zip(settings, timed, strict=True):
            runs.append(time_epochs(pipe, proxy, setting.distance))
    return timed


def _seconds(runs: Sequence[Timed]) -> float:
    return statistics.median(run.later_seconds for run in runs)


def _bytes_per_second(runs: Sequence[Timed]) -> float:
    """What passed while the store was read without a pause: not at the beginning, nor in the last epoch."""
    middle = [(run.passed[1:-1] or run.passed, run.seconds[1:-1] or run.seconds) for run in runs]
    passed = sum(each.answer_bytes for some, _ in middle for each in some)
    return passed / sum(sum(seconds) for _, seconds in middle)


def _ratio(setting: _Setting, runs: Sequence[Timed], near: Sequence[Timed]) -> float | None:
    if setting.distance.bytes_per_second:
        return _bytes_per_second(runs) / setting.distance.bytes_per_second
    return _seconds(near) / _seconds(runs) if setting.distance.latency_seconds else None


def _least(setting: _Setting) -> float:
    return _BANDWIDTH_LEAST if setting.distance.bytes_per_second else _LATENCY_LEAST


def _write_line(
    reading: Reading, setting: _Setting, runs: Sequence[Timed], ratio: float | None
) -> tuple[str, ...]:
    seconds = _seconds(runs)
    requests = sum(passed.requests for run in runs for passed in run.passed)
    return (
        reading.executor,
        reading.client,
        setting.name,
        f"{statistics.median(run.first_batch_seconds for run in runs):.2f}",
        f"{seconds:.2f}",
        f"{_bytes_per_second(runs) / 1e6:.0f}",
        f"{requests / sum(len(run.passed) for run in runs):.0f}",
        f"{max(passed.at_once for run in runs for passed in run.passed)}",
        "-" if ratio is None else f"{ratio:.2f}",
    )
