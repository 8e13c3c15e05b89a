"""The generated table of ``operations``, the functions that are mapped over its batches, and the systems.

Each system is in a process of its own, which is asked for an operation at a time.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.data.files import make_once
from bench.system.machine import count_cores
from bench.system.ray_cluster import start_ray

# columns that the functions read
INPUTS = ("a", "b", "c", "d")
BATCH_ROWS = 65_536
INFERENCE_ROWS = 8_192
_FILES = 16
_GROUPS_OF_FILE = 2
_ROW_BYTES = 8 * 7
_KEYS = 10_000
_UNITS = 256
# the share of the files that inference reads: its model is slower than any reader
INFERENCE_FILES = 6


def make_files(folder: Path, size_bytes: int, seed: int = 7) -> list[str]:
    """Write the table unless that was done before, and return its files in order."""
    rows = max(1, size_bytes // (_ROW_BYTES * _FILES * _GROUPS_OF_FILE))
    # whole batches of inference, where there is at least one: a short batch would change the rate
    rows = rows // INFERENCE_ROWS * INFERENCE_ROWS or rows
    home = folder / f"operations-{rows * _FILES * _GROUPS_OF_FILE}-rows-v1"

    def make(folder: Path) -> None:
        folder.mkdir()
        for number in range(_FILES):
            table = _make_table(np.random.default_rng((seed, number)), rows * _GROUPS_OF_FILE)
            pq.write_table(table, folder / f"part-{number:05d}.parquet", row_group_size=rows)

    make_once(home, make)
    return sorted(str(path.resolve()) for path in home.glob("*.parquet"))


def _make_table(rng: np.random.Generator, rows: int) -> pa.Table:
    return pa.table(
        {
            "key": rng.integers(0, _KEYS, rows),
            "order": rng.integers(0, 2**62, rows),
            # whole numbers, so that sums are the same in every order
            "x": rng.integers(-1_000, 1_000, rows).astype(np.float64),
            **{name: rng.standard_normal(rows) for name in INPUTS},
        }
    )


def score(batch: dict[str, Any]) -> dict[str, Any]:
    a, b, c, d = (batch[name] for name in INPUTS)
    return {"score": np.tanh(a * b) + np.log1p(np.abs(c)) * np.sqrt(np.abs(d))}


def summarize(batch: dict[str, Any]) -> dict[str, Any]:
    """The same function; returns one row for each batch, so that next to nothing is written."""
    values = score(batch)["score"]
    return {"rows": np.array([len(values)]), "score": np.array([values.sum()])}


class Model:
    """A network of three layers, whose time for a batch does not depend on the values; one thread computes."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self._layers = [
            rng.standard_normal(shape).astype(np.float32) / np.float32(np.sqrt(shape[0]))
            for shape in ((len(INPUTS), _UNITS), (_UNITS, _UNITS), (_UNITS, 1))
        ]
        # kept for all batches: page faults of new memory would not take a fixed time
        self._outputs = [
            np.zeros((INFERENCE_ROWS, layer.shape[1]), dtype=np.float32) for layer in self._layers
        ]

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return a prediction for each row, and when the batch was done."""
        values = np.stack([batch[name] for name in INPUTS], axis=1).astype(np.float32)
        for layer, output in zip(self._layers, self._outputs, strict=True):
            values = np.matmul(values, layer, out=output[: len(values)])
            np.maximum(values, 0, out=values)
        return {"prediction": values[:, 0].copy(), "done": np.full(len(values), time.monotonic())}


_OBJECT_STORE_BYTES = 2 * 10**9


@dataclass(frozen=True)
class Measured:
    """One run of an operation: its time, that of this process's threads, and a number that all systems share."""

    rows: int
    seconds: float
    cpu_seconds: float
    total: float


class System:
    """Runs the operations that are its methods, which return rows and a total that all systems share.

    `inference` measures from the end of its first batch.
    """

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths
        self.start()

    def start(self) -> None:
        """Start what outlives an operation."""

    def run(self, operation: str) -> Measured:
        work: Callable[[], Any] = getattr(self, operation.replace("-", "_"))
        begin, begin_cpu = time.perf_counter(), time.process_time()
        found = work()
        if isinstance(found, Measured):
            return found
        rows, total = found
        return Measured(rows, time.perf_counter() - begin, time.process_time() - begin_cpu, total)


class Plain(System):
    """Loops over pyarrow's batches on one thread a core, and the model on one batch in memory."""

    def map(self) -> tuple[int, float]:
        return self._loop(lambda batch: _add_scores(score(batch)))

    def map_nothing(self) -> tuple[int, float]:
        return self._loop(lambda batch: _add_summary(summarize(batch)))

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

        tables = [pq.read_table(path, columns=list(INPUTS)) for path in self.paths[:INFERENCE_FILES]]
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


class _Datasets(System):
    """A library of datasets, read by ``module.read_parquet``, that are mapped, grouped and sorted lazily."""

    module = "windrow"
    # said to windrow where a function does not return a row for each row
    changes_rows: Mapping[str, Any] = {}
    grouped_columns: tuple[str, ...] | None = None

    def _read(self, paths: list[str], columns: Iterable[str] | None = None) -> Any:
        library = importlib.import_module(self.module)
        return library.read_parquet(paths, columns=None if columns is None else list(columns))

    def _batches(self, dataset: Any, rows: int = BATCH_ROWS) -> Any:
        return dataset.iter_batches(batch_size=rows, batch_format="numpy")

    def map(self) -> tuple[int, float]:
        mapped = self._read(self.paths, INPUTS).map_batches(score, batch_size=BATCH_ROWS)
        return _add_up(map(_add_scores, self._batches(mapped)))

    def map_nothing(self) -> tuple[int, float]:
        dataset = self._read(self.paths, INPUTS)
        mapped = dataset.map_batches(summarize, batch_size=BATCH_ROWS, **self.changes_rows)
        return _add_up(map(_add_summary, self._batches(mapped)))

    def inference(self) -> Measured:
        predicted = self._read(self.paths[:INFERENCE_FILES], INPUTS).map_batches(
            Model, compute=self._make_pool(), batch_size=INFERENCE_ROWS
        )
        return _time_predictions(self._batches(predicted, INFERENCE_ROWS))

    def _make_pool(self) -> Any:
        return importlib.import_module(self.module).ActorPool(1)

    def groupby(self) -> tuple[int, float]:
        means = self._read(self.paths, self.grouped_columns).groupby("key").mean("x")
        return _add_means(self._batches(means))

    def sort(self) -> tuple[int, float]:
        return _add_sorted(self._batches(self._read(self.paths).sort("order")))


class Windrow(_Datasets):
    """windrow, on one of its executors."""

    executor = "threads"
    changes_rows: Mapping[str, Any] = {"preserves_rows": False}

    def _read(self, paths: list[str], columns: Iterable[str] | None = None) -> Any:
        return super()._read(paths, columns).options(executor=self.executor, progress=False)


class WindrowOnRay(Windrow):
    executor = "ray"

    def start(self) -> None:
        start_ray(_OBJECT_STORE_BYTES, count_cores())

    def _batches(self, dataset: Any, rows: int = BATCH_ROWS) -> Any:
        # iterating over a dataset itself reads on threads, whatever the executor
        return super()._batches(dataset.repeat(1), rows)


class RayData(_Datasets):
    module = "ray.data"
    grouped_columns = ("key", "x")

    def start(self) -> None:
        start_ray(_OBJECT_STORE_BYTES, count_cores())
        import ray.data

        ray.data.DataContext.get_current().enable_progress_bars = False

    def _make_pool(self) -> Any:
        return importlib.import_module(self.module).ActorPoolStrategy(size=1)


class Polars(System):
    """Polars' streaming engine, with as many threads as there are cores."""

    def start(self) -> None:
        try:
            import polars
        except ImportError:
            raise RuntimeError("Polars is not installed") from None
        if polars.thread_pool_size() > count_cores():
            raise RuntimeError(f"Polars uses {polars.thread_pool_size()} threads on {count_cores()} cores")
        self._polars = polars

    def groupby(self) -> tuple[int, float]:
        plan = (
            self._polars.scan_parquet(self.paths)
            .group_by("key")
            .agg(self._polars.col("x").mean())
            .sort("key")
        )
        means = plan.collect(engine="streaming")
        return _add_means([{"key": means["key"].to_numpy(), "mean(x)": means["x"].to_numpy()}])

    def sort(self) -> tuple[int, float]:
        frame = self._polars.scan_parquet(self.paths).sort("order").collect(engine="streaming")
        parts = frame.iter_slices(BATCH_ROWS)
        return _add_sorted({name: part[name].to_numpy() for name in part.columns} for part in parts)


SYSTEMS: dict[str, type[System]] = {
    "plain": Plain,
    "polars": Polars,
    "windrow-threads": Windrow,
    "windrow-ray": WindrowOnRay,
    "ray": RayData,
}


def _add_up(found: Iterable[tuple[int, float]]) -> tuple[int, float]:
    rows, total = 0, 0.0
    for rows_of_batch, total_of_batch in found:
        rows, total = rows + rows_of_batch, total + total_of_batch
    return rows, total


def _add_scores(batch: dict[str, Any]) -> tuple[int, float]:
    return len(batch["score"]), float(batch["score"].sum())


def _add_summary(batch: dict[str, Any]) -> tuple[int, float]:
    return int(batch["rows"].sum()), float(batch["score"].sum())


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


def start(name: str, paths: list[str]) -> Callable[[str], dict[str, Any]]:
    system = SYSTEMS[name](paths)
    return lambda operation: asdict(system.run(operation))
