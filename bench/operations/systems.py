"""The systems of ``operations``, each in a process of its own: ``python -m bench.operations.systems NAME FILES``.

The process prints "#ready", reads the name of an operation a line, runs it once, and prints the result as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bench.operations.data import (
    BATCH_ROWS,
    INFERENCE_ROWS,
    INPUTS,
    Model,
    inference_files,
    score,
    summarize,
)
from bench.system.machine import count_cores

_OBJECT_STORE_BYTES = 2 * 10**9


@dataclass(frozen=True)
class Measured:
    """One run of an operation: its time, that of this process's threads, and a number that all systems share."""

    rows: int
    seconds: float
    cpu_seconds: float
    total: float


class System(ABC):
    """Runs operations on the files."""

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths

    def start(self) -> None:
        """Start what outlives an operation."""
        return

    def close(self) -> None:
        """Stop it."""
        return

    def run(self, operation: str) -> Measured:
        """Run an operation once."""
        work: dict[str, Callable[[], tuple[int, float]]] = {
            "map": self.map,
            "map-nothing": self.map_nothing,
            "groupby": self.groupby,
            "sort": self.sort,
        }
        begin, begin_cpu = time.perf_counter(), time.process_time()
        if operation == "inference":
            return self.inference()
        rows, total = work[operation]()
        return Measured(rows, time.perf_counter() - begin, time.process_time() - begin_cpu, total)

    @abstractmethod
    def map(self) -> tuple[int, float]:
        """Map `score` and consume batches; returns the rows and the sum of scores."""

    @abstractmethod
    def map_nothing(self) -> tuple[int, float]:
        """Map `summarize`; returns the rows and the sum of scores."""

    @abstractmethod
    def inference(self) -> Measured:
        """Map `Model` with one worker, and measure from the end of its first batch."""

    @abstractmethod
    def groupby(self) -> tuple[int, float]:
        """Return the number of groups and the sum of their means."""

    @abstractmethod
    def sort(self) -> tuple[int, float]:
        """Sort whole rows; returns their number and a sum that depends on the order."""


class Plain(System):
    """Loops over pyarrow's batches on one thread a core, and the model on one batch in memory."""

    def map(self) -> tuple[int, float]:
        return self._loop(lambda batch: (len(batch["a"]), float(score(batch)["score"].sum())))

    def map_nothing(self) -> tuple[int, float]:
        return self._loop(_add_summary)

    def _loop(self, work: Callable[[dict[str, Any]], tuple[int, float]]) -> tuple[int, float]:
        import pyarrow.parquet as pq

        def scan(path: str) -> tuple[int, float]:
            with pq.ParquetFile(path, memory_map=True) as file:
                batches = file.iter_batches(BATCH_ROWS, columns=list(INPUTS), use_threads=False)
                return _add_up(
                    work({name: batch[name].to_numpy() for name in batch.schema.names}) for batch in batches
                )

        with ThreadPoolExecutor(count_cores()) as threads:
            return _add_up(threads.map(scan, self.paths))

    def inference(self) -> Measured:
        import pyarrow.parquet as pq

        tables = [pq.read_table(path, columns=list(INPUTS)) for path in inference_files(self.paths)]
        rows, total = sum(table.num_rows for table in tables), 0.0
        batch = {name: tables[0][name].to_numpy()[:INFERENCE_ROWS] for name in INPUTS}
        rows_of_batch, model = len(batch["a"]), Model()
        model(batch)
        begin, begin_cpu = time.perf_counter(), time.process_time()
        times = max(1, rows // rows_of_batch)
        for _ in range(times):
            total += float(model(batch)["prediction"].sum())
        # the total is of one batch, which the others do not share
        seconds, cpu = time.perf_counter() - begin, time.process_time() - begin_cpu
        return Measured(times * rows_of_batch, seconds, cpu, float("nan"))

    def groupby(self) -> tuple[int, float]:
        raise NotImplementedError

    def sort(self) -> tuple[int, float]:
        raise NotImplementedError


class Windrow(System):
    """windrow, on one of its executors."""

    executor = "threads"

    def start(self) -> None:
        import windrow

        self._windrow = windrow

    def _read(self, paths: list[str], columns: Iterable[str] | None = None) -> Any:
        dataset = self._windrow.read_parquet(paths, columns=None if columns is None else list(columns))
        return dataset.options(executor=self.executor, progress=False)

    def _batches(self, dataset: Any, rows: int) -> Any:
        return dataset.iter_batches(batch_size=rows, batch_format="numpy")

    def map(self) -> tuple[int, float]:
        mapped = self._read(self.paths, INPUTS).map_batches(score, batch_size=BATCH_ROWS)
        return _add_scores(self._batches(mapped, BATCH_ROWS))

    def map_nothing(self) -> tuple[int, float]:
        mapped = self._read(self.paths, INPUTS).map_batches(
            summarize, batch_size=BATCH_ROWS, preserves_rows=False
        )
        return _add_summaries(self._batches(mapped, BATCH_ROWS))

    def inference(self) -> Measured:
        predicted = self._read(inference_files(self.paths), INPUTS).map_batches(
            Model, compute=self._windrow.ActorPool(1), batch_size=INFERENCE_ROWS
        )
        return _time_predictions(self._batches(predicted, INFERENCE_ROWS))

    def groupby(self) -> tuple[int, float]:
        means = self._read(self.paths).groupby("key").mean("x")
        return _add_means(self._batches(means, BATCH_ROWS))

    def sort(self) -> tuple[int, float]:
        rows = self._read(self.paths).sort("order")
        return _add_sorted(self._batches(rows, BATCH_ROWS))


class WindrowOnRay(Windrow):
    """windrow on a Ray of its own."""

    executor = "ray"

    def start(self) -> None:
        _start_ray()
        super().start()

    def close(self) -> None:
        _stop_ray()

    def _batches(self, dataset: Any, rows: int) -> Any:
        # iterating over a dataset itself reads on threads, whatever the executor
        return super()._batches(dataset.repeat(1), rows)


class Polars(System):
    """Polars' streaming engine, with as many threads as there are cores."""

    def start(self) -> None:
        os.environ["POLARS_MAX_THREADS"] = str(count_cores())
        try:
            import polars
        except ImportError:
            raise RuntimeError("Polars is not installed") from None
        if polars.thread_pool_size() > count_cores():
            raise RuntimeError(f"Polars uses {polars.thread_pool_size()} threads on {count_cores()} cores")
        self._polars = polars

    def groupby(self) -> tuple[int, float]:
        plan = self._scan().group_by("key").agg(self._polars.col("x").mean()).sort("key")
        means = plan.collect(engine="streaming")
        return _add_means([{"key": means["key"].to_numpy(), "mean(x)": means["x"].to_numpy()}])

    def sort(self) -> tuple[int, float]:
        frame = self._scan().sort("order").collect(engine="streaming")
        return _add_sorted({name: part[name].to_numpy() for name in part.columns} for part in _slices(frame))

    def _scan(self) -> Any:
        return self._polars.scan_parquet(self.paths)

    def map(self) -> tuple[int, float]:
        raise NotImplementedError

    def map_nothing(self) -> tuple[int, float]:
        raise NotImplementedError

    def inference(self) -> Measured:
        raise NotImplementedError


class RayData(System):
    """Ray Data, on a Ray of its own."""

    def start(self) -> None:
        _start_ray()
        import ray.data

        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        self._data = ray.data

    def close(self) -> None:
        _stop_ray()

    def _read(self, paths: list[str], columns: Iterable[str] | None = None) -> Any:
        return self._data.read_parquet(paths, columns=None if columns is None else list(columns))

    def map(self) -> tuple[int, float]:
        mapped = self._read(self.paths, INPUTS).map_batches(score, batch_size=BATCH_ROWS)
        return _add_scores(mapped.iter_batches(batch_size=BATCH_ROWS, batch_format="numpy"))

    def map_nothing(self) -> tuple[int, float]:
        mapped = self._read(self.paths, INPUTS).map_batches(summarize, batch_size=BATCH_ROWS)
        return _add_summaries(mapped.iter_batches(batch_size=BATCH_ROWS, batch_format="numpy"))

    def inference(self) -> Measured:
        predicted = self._read(inference_files(self.paths), INPUTS).map_batches(
            Model, compute=self._data.ActorPoolStrategy(size=1), batch_size=INFERENCE_ROWS
        )
        return _time_predictions(predicted.iter_batches(batch_size=INFERENCE_ROWS, batch_format="numpy"))

    def groupby(self) -> tuple[int, float]:
        means = self._read(self.paths, ("key", "x")).groupby("key").mean("x")
        return _add_means(means.iter_batches(batch_size=BATCH_ROWS, batch_format="numpy"))

    def sort(self) -> tuple[int, float]:
        rows = self._read(self.paths).sort("order")
        return _add_sorted(rows.iter_batches(batch_size=BATCH_ROWS, batch_format="numpy"))


SYSTEMS: dict[str, type[System]] = {
    "plain": Plain,
    "polars": Polars,
    "windrow-threads": Windrow,
    "windrow-ray": WindrowOnRay,
    "ray": RayData,
}


def _start_ray() -> None:
    import ray

    ray.init(
        address="local",  # never join another cluster on this machine
        num_cpus=count_cores(),
        object_store_memory=_OBJECT_STORE_BYTES,
        include_dashboard=False,
        logging_level="error",
        log_to_driver=False,
        # free dead objects after 50 ms instead of 1 s; see "Tuning Ray" in the README
        _system_config={"free_objects_period_milliseconds": 50},
    )


def _stop_ray() -> None:
    import ray

    ray.shutdown()


def _add_up(found: Iterable[tuple[int, float]]) -> tuple[int, float]:
    rows, total = 0, 0.0
    for rows_of_batch, total_of_batch in found:
        rows, total = rows + rows_of_batch, total + total_of_batch
    return rows, total


def _add_scores(batches: Iterable[dict[str, Any]]) -> tuple[int, float]:
    return _add_up((len(batch["score"]), float(batch["score"].sum())) for batch in batches)


def _add_summary(batch: dict[str, Any]) -> tuple[int, float]:
    found = summarize(batch)
    return int(found["rows"].sum()), float(found["score"].sum())


def _add_summaries(batches: Iterable[dict[str, Any]]) -> tuple[int, float]:
    return _add_up((int(batch["rows"].sum()), float(batch["score"].sum())) for batch in batches)


def _add_means(batches: Iterable[dict[str, Any]]) -> tuple[int, float]:
    return _add_up(
        (len(batch["key"]), float((batch["mean(x)"] * (1 + batch["key"] % 7)).sum())) for batch in batches
    )


def _add_sorted(batches: Iterable[dict[str, Any]]) -> tuple[int, float]:
    """Check the order, and read one column beside the key; the other columns have come too."""
    rows, total, last = 0, 0.0, -1
    for batch in batches:
        order, values = batch["order"], batch["x"]
        if order[0] < last or np.any(order[1:] < order[:-1]):
            raise ValueError("the rows are not sorted")
        last = int(order[-1])
        total += float(values.sum())
        rows += len(order)
    return rows, total


def _slices(frame: Any) -> Iterator[Any]:
    return iter(frame.iter_slices(BATCH_ROWS))


def _time_predictions(batches: Iterable[dict[str, Any]]) -> Measured:
    """The rate from the end of the model's first batch until the consumer has the last."""
    rows, total, first, rows_of_first = 0, 0.0, float("inf"), 0
    begin_cpu = time.process_time()
    for batch in batches:
        rows += len(batch["prediction"])
        total += float(batch["prediction"].sum())
        ended = float(batch["done"].min())
        if ended < first:
            first, rows_of_first = ended, int((batch["done"] == ended).sum())
    seconds = time.monotonic() - first
    return Measured(rows - rows_of_first, seconds, time.process_time() - begin_cpu, total)


def _serve(name: str, paths: list[str]) -> None:
    system = SYSTEMS[name](paths)
    # what else prints must not disturb the lines of results
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def send(fields: dict[str, Any]) -> None:
        print(json.dumps(fields), file=results, flush=True)

    try:
        system.start()
    except Exception as error:
        traceback.print_exc()
        send({"error": _shorten(error)})
        return
    send({"ready": True})
    try:
        for line in sys.stdin:
            try:
                send(asdict(system.run(line.strip())))
            except Exception as error:
                traceback.print_exc()
                send({"error": _shorten(error)})
    finally:
        system.close()


def _shorten(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200] if lines else ''}"


if __name__ == "__main__":
    _serve(sys.argv[1], json.loads(sys.argv[2]))
