"""``python -m bench mixture``: a mixture of several sources and one pipeline over the same data, in turns."""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import windrow
from bench.data.generators import DLRM_ROW_BYTES
from bench.system.console import ProgressLine, add_data, add_turns, print_table, read_counts
from bench.system.machine import print_machine
from bench.system.processes import MemorySampler, ProcessTree
from bench.throughput.options import BenchConfig, find_data
from windrow import Dataset, DatasetPipeline

_BATCH_ROWS = 8_192
# small, so that the windows of many sources together are not larger than those of one pipeline
_GROUP_ROWS = 16_384
_WINDOWS = 8
# of one pipeline's rows a second, for up to so many sources, and of the time to its first batch
_LEAST = {3: 0.92, 50: 0.75}
_MOST_FIRST = 1.5
_HEADS = ("sources", "Mrow/s", "of one", "first batch s", "of one", "memory MB", "explained MB")
_NOTE = (
    "of one: median over the rounds of the ratio to one pipeline over the same data, whose windows are as large as "
    "those of all sources together, measured just before. memory MB: the peak beyond that before the run, median."
)


@dataclass(frozen=True)
class _Reading:
    rows_per_second: float
    first_seconds: float
    memory_bytes: int
    explained_bytes: int


def add_options(parser: argparse.ArgumentParser) -> None:
    add_data(parser, "1.4GB")
    parser.add_argument("--sources", type=read_counts, default="3,50", help="numbers of sources")
    parser.add_argument("--memory-limit", help="that of each pipeline (default: windrow's)")
    add_turns(parser, rounds=3, epochs=3)


def run(options: argparse.Namespace) -> int:
    """Measure and print the table; the exit status is 1 if a mixture is slower or takes more memory than it may."""
    line = ProgressLine()
    config = BenchConfig(size_bytes=options.size_bytes, group_rows=_GROUP_ROWS, folder=options.folder)
    paths = find_data(config)
    print_machine()
    rows, is_met = [], True
    for sources in options.sources:
        # row groups in a window of a source; the one pipeline has as many in a window as all sources together
        blocks = max(1, round(options.size_bytes / (_WINDOWS * sources * _GROUP_ROWS * DLRM_ROW_BYTES)))
        pairs = []
        for number in range(options.rounds):
            line.start(f"round {number + 1}: {sources} sources")
            pair = [_measure(paths, count, blocks * sources // count, options) for count in (1, sources)]
            pairs.append(pair)
            line.finish(f"{pair[1].rows_per_second / pair[0].rows_per_second:.2f}")
        found = [mixed for _, mixed in pairs]
        speed = statistics.median(mixed.rows_per_second / one.rows_per_second for one, mixed in pairs)
        first = statistics.median(mixed.first_seconds / one.first_seconds for one, mixed in pairs)
        memory = statistics.median(each.memory_bytes for each in found)
        explained = found[0].explained_bytes
        least = next((share for most, share in _LEAST.items() if sources <= most), 0.0)
        is_met = is_met and speed >= least and first <= _MOST_FIRST and memory <= explained
        rate = statistics.median(each.rows_per_second for each in found) / 1e6
        seconds = statistics.median(each.first_seconds for each in found)
        values = (f"{value:.2f}" for value in (rate, speed, seconds, first))
        rows.append((f"{sources}", *values, f"{memory / 1e6:,.0f}", f"{explained / 1e6:,.0f}"))
    print_table(_HEADS, rows, ("sources",), _NOTE)
    return int(not is_met)


def _measure(paths: Sequence[str], sources: int, blocks: int, options: argparse.Namespace) -> _Reading:
    """Read in a new process, so that nothing is warm and memory is its own."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_read, list(paths), sources, blocks, options).result()


def _read(paths: list[str], sources: int, blocks: int, options: argparse.Namespace) -> _Reading:
    importlib.import_module("torch")  # not part of the time to the first batch

    whole = windrow.read_parquet(paths, target_block_bytes=1)
    pipe = _make_pipeline(whole, blocks, 1)
    if sources > 1:
        pipes = {}
        for number in range(sources):
            own = paths[number::sources] or [paths[number % len(paths)]]
            dataset = windrow.read_parquet(own, target_block_bytes=1)
            pipes[f"source {number}"] = _make_pipeline(dataset, blocks, number)
        pipe = windrow.mixture(pipes, dict.fromkeys(pipes, 1), seed=5)
    pipe = pipe.options(executor="threads", progress=False)
    if options.memory_limit is not None:
        pipe = pipe.options(memory_limit=options.memory_limit)
    explained = pipe.explain(1, batch_size=_BATCH_ROWS).budget.total_bytes
    with MemorySampler(ProcessTree(os.getpid())) as sampler:
        idle_bytes = sampler.measure()
        wanted, began = whole.count() * options.epochs, time.monotonic()
        done, first = 0, 0.0
        for batch in pipe.iter_torch_batches(batch_size=_BATCH_ROWS):
            first = first or time.monotonic()
            done += len(next(iter(batch.values())))
            if done >= wanted:
                break
        stopped = time.monotonic()
    peak = sampler.peak(began, stopped) or 0
    return _Reading(done / (stopped - first), first - began, peak - idle_bytes, explained)


def _make_pipeline(dataset: Dataset, blocks: int, seed: int) -> DatasetPipeline:
    return dataset.window(blocks_per_window=blocks).repeat().random_shuffle_each_window(seed=seed)
