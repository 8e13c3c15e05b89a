"""Times shuffled epochs read from object storage."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import windrow
from bench.remote.proxy import Proxy, Traffic
from bench.remote.server import KEY, SECRET
from windrow import DatasetPipeline

__all__ = ["Reading", "Timed", "open_pipe", "time_epochs"]

_BATCH_ROWS = 16_384


@dataclass(frozen=True)
class Reading:
    """How epochs are read: client, executor and pipeline options."""

    client: str
    executor: str
    epochs: int
    window: str | None
    columns: tuple[str, ...] | None
    cache: str | None
    block: str = "64MiB"


@dataclass(frozen=True)
class Timed:
    """Seconds to the first batch and of each epoch, and the proxy's traffic in each epoch.

    An epoch starts when the previous one has ended, so the first includes the start of the run.
    """

    first_batch_seconds: float
    seconds: tuple[float, ...]
    traffic: tuple[Traffic, ...]

    @property
    def later_seconds(self) -> float:
        """Mean over the epochs without the first; during each, windows of the next are prefetched."""
        later = self.seconds[1:] or self.seconds
        return sum(later) / len(later)


def open_pipe(folder: Path, endpoint: str, reading: Reading) -> DatasetPipeline:
    """Build the measured pipeline; this lists the files."""
    given: dict[str, Any] = {"columns": reading.columns, "target_block_bytes": reading.block}
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
        options = {"endpoint_url": endpoint, "client_kwargs": {"region_name": "us-east-1"}}
        given["storage_options"] = {"key": KEY, "secret": SECRET, **options}
        path = f"s3://{path}"
    pipe = windrow.read_parquet(path, **given).window(bytes_per_window=reading.window or "1GiB")
    pipe = pipe.repeat(reading.epochs).random_shuffle_each_window(seed=7)
    cache: Any = reading.cache
    return pipe.options(executor=reading.executor, progress=False, cache=cache)


def time_epochs(pipe: DatasetPipeline, proxy: Proxy, conditions: Any) -> Timed:
    """Read a pipeline to its end at full speed."""
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
