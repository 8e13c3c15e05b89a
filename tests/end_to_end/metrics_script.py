"""Four runs that between them change every metric, and a scrape of the node: what the test of Ray's metrics reads."""

from __future__ import annotations

import json
import sys
import time
import urllib.error
import urllib.request
from typing import Any

import ray

import windrow
from windrow.pipeline.executors import window_fetch
from windrow.pipeline.executors.ray.fetch_thread import Fetcher
from windrow.pipeline.executors.ray.run_metrics import METRICS

ADDRESS, OPTIONS, CORRUPT = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
SECONDS = 120.0


def open_remote() -> list[windrow.Shard]:
    """Object storage that fails now and then, read twice and cached, by two trainers."""
    dataset = windrow.read_parquet(ADDRESS, storage_options=OPTIONS, target_block_bytes=1)
    pipe = dataset.window(blocks_per_window=4).map_batches(lambda batch: batch).repeat(2)
    return pipe.random_shuffle_each_window(seed=7).options(cache="memory", progress=False).split(2)


def open_corrupt() -> list[windrow.Shard]:
    """Files with a corrupt row group."""
    pipe = windrow.read_parquet(CORRUPT, target_block_bytes=1).window(blocks_per_window=3).repeat(1)
    return pipe.options(on_error="skip", progress=False).split(1)


def open_mixture() -> list[windrow.Shard]:
    """Two sources, for one of which the trainer waits."""

    def prepare(batch: Any) -> Any:
        time.sleep(0.2)
        return batch

    fast = windrow.range(400, block_rows=100).window(blocks_per_window=1)
    slow = windrow.range(400, block_rows=100).map_batches(prepare).window(blocks_per_window=1)
    sources = {name: pipe.repeat(1) for name, pipe in {"fast": fast, "slow": slow}.items()}
    return windrow.mixture(sources, {"fast": 1, "slow": 1}, seed=7).options(progress=False).split(1)


def open_dropping() -> list[windrow.Shard]:
    """A window whose objects are lost until it is produced again."""
    load, lost = Fetcher._load, set[Any]()
    window_fetch._LOSSES_PER_ATTEMPT = 2

    def forget(self: Fetcher, reply: Any, *arguments: Any) -> Any:
        refs = {ref for handles in reply.outputs.values() for ref in handles}
        if not lost:
            lost.update(refs)
        if refs & lost:
            raise ray.exceptions.ObjectLostError("ab" * 28, "", "")
        return load(self, reply, *arguments)

    Fetcher._load = forget  # type: ignore[method-assign, assignment]
    return windrow.range(1_000, block_rows=100).window(blocks_per_window=2).repeat(1).split(1)


def read(shards: list[windrow.Shard]) -> None:
    """Read all epochs, step by step."""
    for epochs in zip(*(shard.iter_epochs() for shard in shards), strict=True):
        for _ in zip(*(epoch.iter_batches(batch_size=50) for epoch in epochs), strict=True):
            pass


def scrape() -> str:
    """What Prometheus would get."""
    (node,) = ray.nodes()
    address = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
    try:
        with urllib.request.urlopen(address, timeout=10) as answer:
            return str(answer.read().decode())
    except urllib.error.URLError:
        # the agent starts after the node
        return ""


def main() -> None:
    """Print the lines of windrow's metrics, once all are there and settled, or the time is over."""
    ray.init(
        address="local",
        num_cpus=4,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        _system_config={"metrics_report_interval_ms": 1_000},
    )
    # shards stay open, since a run's metrics end with it
    open_runs = [open_remote(), open_corrupt(), open_mixture(), open_dropping()]
    for shards in open_runs[:-1]:
        read(shards)
    # in the middle of the last run, map outputs are held
    batches: Any = iter(open_runs[-1][0].iter_batches(batch_size=50))
    for _ in range(5):
        next(batches)
    # Ray 2.60 drops a gauge that was not set for 20 seconds
    time.sleep(30)
    until, before = time.monotonic() + SECONDS, [""]
    while time.monotonic() < until:
        # longer than trainers take to report, and Ray to export
        time.sleep(4)
        lines = sorted(line for line in scrape().splitlines() if line.startswith("ray_windrow_"))
        names = {line.partition("{")[0] for line in lines}
        if lines == before and names >= {metric.exported_name for metric in METRICS.values()}:
            break
        before = lines
    print("\n".join(before))
    batches.close()
    for shards in open_runs:
        for shard in shards:
            shard.close()
    ray.shutdown()


if __name__ == "__main__":
    main()
