"""The systems of ``cores``, each in a process of its own, on some of the cores."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from bench.shapes.systems import measure
from bench.system.ray_cluster import start_ray

SYSTEMS = ("scan", "threads", "ray")


def scan(request: dict[str, Any], cores: int) -> dict[str, Any]:
    """Decode all columns with Arrow's scanner on as many threads, and keep nothing."""
    import pyarrow as pa
    import pyarrow.dataset as ds

    pa.set_cpu_count(cores)
    rows, began, began_cpu = 0, time.time(), time.process_time()
    for _ in range(request["epochs"]):
        scanner = ds.dataset(request["paths"], format="parquet").scanner(use_threads=True)
        rows = sum(batch.num_rows for batch in scanner.to_batches())
    seconds, cpu_seconds = time.time() - began, time.process_time() - began_cpu
    epochs = request["epochs"]
    return {"rows": rows, "began": began, "seconds": seconds / epochs, "cpu_seconds": cpu_seconds / epochs}


def start(name: str, cores: int, store_bytes: int) -> Callable[[Any], dict[str, Any]]:
    # threads and processes that start from now on inherit it
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    if name == "scan":
        return lambda request: scan(request, cores)
    if name == "ray":
        start_ray(store_bytes, cores)
    return lambda request: measure(request, name)
