"""Compares where a small model runs: in the tasks that read, or on actors, to which batches have to be sent.

python docs/examples/small_model.py [threads | ray]
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time

import numpy as np

import windrow

ROWS, VALUES, ROUNDS = 160_000, 3 * 32 * 32, 3


class Model:
    """One layer."""

    def __init__(self) -> None:
        self.weights = np.ones((VALUES, 8), np.float32)

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {"score": (batch["x"].astype(np.float32) @ self.weights)[:, 0]}


def main(executor: str = "threads") -> None:
    """Write the scores of the same rows in turns, and print the median of each way."""
    if executor == "ray":
        import ray

        ray.init(num_cpus=2, log_to_driver=False)
    ways = {"no compute=": None, "processes": "processes", "ActorPool(size=2)": windrow.ActorPool(size=2)}
    rates: dict[str, list[float]] = {name: [] for name in ways}
    with tempfile.TemporaryDirectory() as folder:
        rows = windrow.from_numpy({"x": np.zeros((ROWS, VALUES), np.uint8)})
        rows.write_parquet(f"{folder}/in", target_file_bytes="8MiB")
        images = windrow.read_parquet(f"{folder}/in", target_block_bytes="8MiB").options(executor=executor)
        for turn in range(ROUNDS):
            for name, compute in ways.items():
                scored = images.map_batches(Model, batch_size=1024, compute=compute)
                began = time.perf_counter()
                scored.write_parquet(f"{folder}/{turn}{name}")
                rates[name].append(ROWS / (time.perf_counter() - began))
    for name, found in rates.items():
        print(f"{executor} {name:18} {statistics.median(found):9,.0f} rows/s")


if __name__ == "__main__":
    main(*sys.argv[1:])
