"""What ``balance=`` costs: epochs with it and without in turns, and how full and how fast steps are cut by tokens."""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

import windrow
from bench.system.console import ProgressLine, print_table
from windrow.shuffle.order.shard_assignment import ShardAssignment
from windrow.shuffle.order.step_cuts import StepCuts

Lengths = NDArray[np.int64]

# rows of 2 KB on the mean
_MEDIAN, _FILES, _GROUP_ROWS, _WINDOW_BLOCKS = 300, 8, 5_000, 16
_STEPS = ((8, 32), (64, 16))
_WAYS = {
    "without": None,
    "equal": windrow.Balance("tokens"),
    "free": windrow.Balance("tokens", rows="free"),
    "free, 4 microbatches": windrow.Balance("tokens", rows="free", microbatches=4),
}
_EPOCHS = 4
_BUDGETS = ((8, 4_096), (8, 16_384), (64, 8_192))
_LONGEST_WAIT_SECONDS = 600.0
_EPOCH_NOTE = (
    "Epochs a second of {rows:,} rows on threads: of the first epoch, and of the mean of the {later} behind it.\n"
    "Medians of {rounds} rounds; times as long: of the ratio to the epochs without balance of the same round."
)
_BUDGET_NOTE = (
    "{rows:,} rows. Fill: tokens of a step over shards x budget, the mean of all steps but the last.\n"
    "CPU time of cutting alone, the median of {rounds} rounds."
)


def make_lengths(rows: int, median: float, longest: float = np.inf) -> Lengths:
    drawn = np.exp(np.random.default_rng(0).normal(np.log(median), 1, rows))
    return np.clip(drawn, 1, longest).astype(np.int64)


def measure_epochs(rows: int, rounds: int) -> None:
    """Read epochs in all ways one after the other, and print a table of how long they take."""
    with tempfile.TemporaryDirectory() as folder:
        _write_rows(folder, make_lengths(rows, _MEDIAN))
        cells = [cell for step in _STEPS for cell in _compare(folder, step, rounds)]
    heads = ("step", "balance", "first", "times as long", "later", "times as long", "least", "most")
    note = _EPOCH_NOTE.format(rows=rows, later=_EPOCHS - 1, rounds=rounds)
    print_table(heads, cells, ("step", "balance"), note)


def measure_budgets(rows: int, rounds: int) -> None:
    """Cut epochs by tokens, and print a table of what the steps hold and how long it takes."""
    cells = []
    for shards, tokens in _BUDGETS:
        lengths = make_lengths(rows, _MEDIAN, tokens).astype(np.float32)
        assignment = ShardAssignment(shards, 1, balance=windrow.Balance("tokens").with_budget(tokens))
        seconds = []
        for _ in range(rounds):
            cuts, began = StepCuts(assignment, 0), time.thread_time()
            cuts.add(lengths, is_last=True)
            seconds.append(time.thread_time() - began)
        starts = np.array(cuts.starts)
        fill = np.add.reduceat(lengths, starts[:-1], dtype=np.float64)[:-1].mean() / (shards * tokens)
        cost = 1e9 * statistics.median(seconds) / rows
        cells.append(
            (f"{shards} x {tokens:,}", f"{rows / (len(starts) - 1):.1f}", f"{fill:.3f}", f"{cost:.0f}")
        )
    heads = ("tokens", "rows a step", "fill", "ns a row")
    print_table(heads, cells, ("tokens",), _BUDGET_NOTE.format(rows=rows, rounds=rounds))


def _write_rows(folder: str, lengths: Lengths) -> None:
    for number, own in enumerate(np.array_split(lengths, _FILES)):
        offsets = np.append(0, np.cumsum(own)).astype(np.int32)
        values = np.random.default_rng(number).integers(0, 50_000, offsets[-1], np.int32)
        table = pa.table({"tokens": pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))})
        path = f"{folder}/{number}.parquet"
        pq.write_table(table, path, row_group_size=_GROUP_ROWS, compression="none", use_dictionary=False)


def _compare(folder: str, step: tuple[int, int], rounds: int) -> list[tuple[str, ...]]:
    line = ProgressLine()
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in _WAYS}
    for number in range(rounds):
        for way, balance in _WAYS.items():
            line.start(f"round {number + 1}: {step[0]} shards, {way}")
            found[way].append(_read(folder, *step, balance))
            line.finish("{:.2f}, {:.2f} s".format(*found[way][-1]))
    cells = []
    for way, seconds in found.items():
        pairs = zip(seconds, found["without"], strict=True)
        ratios = [[own / without for own, without in zip(*pair, strict=True)] for pair in pairs]
        row = [f"{step[0]} x {step[1]}", way]
        for epoch in range(2):
            row.append(f"{1 / statistics.median(each[epoch] for each in seconds):.2f}")
            row.append(f"{statistics.median(each[epoch] for each in ratios):.2f}")
        later = [ratio for _, ratio in ratios]
        cells.append((*row, f"{min(later):.2f}", f"{max(later):.2f}"))
    return cells


def _read(folder: str, shards: int, batch_size: int, balance: windrow.Balance | None) -> tuple[float, float]:
    """The seconds of the first epoch, and of a later one on the mean."""
    ds = windrow.read_parquet(folder).options(executor="threads", progress=False)
    pipe = ds.window(blocks_per_window=_WINDOW_BLOCKS).repeat(_EPOCHS).random_shuffle_each_window(seed=7)
    marks: list[float] = []
    barrier = threading.Barrier(shards, lambda: marks.append(time.perf_counter()), _LONGEST_WAIT_SECONDS)

    def consume(shard: windrow.Shard) -> None:
        with shard:
            for epoch in shard.iter_epochs():
                barrier.wait()
                for _ in epoch.iter_batches(batch_size, balance=balance, batch_format="pyarrow"):
                    pass
            barrier.wait()

    with ThreadPoolExecutor(shards) as threads:
        list(threads.map(consume, pipe.split(shards, equal=True)))
    first, *later = np.diff(marks).tolist()
    return first, statistics.fmean(later)
