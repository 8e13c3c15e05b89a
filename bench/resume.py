"""``python -m bench resume``: what it costs to go on from a state, wherever in the epoch it lies."""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import windrow
from bench.asked import Asked, find_data
from bench.progress import ProgressLine
from bench.sizes import read_size
from bench.table import align_table
from windrow import DatasetPipeline

__all__ = ["add_resume", "measure_resume"]

_WINDOWS = 10
_BATCH_ROWS = 4096
_MOST = 1.3
# how far into the epoch: in its first window, amid the others, and in the last
_PLACES = (0.05, 0.33, 0.58, 0.97)


def add_resume(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("--size", default="1.4GB", help="decoded bytes of the longer epoch (default: 1.4GB)")
    parser.add_argument("--executor", choices=("threads", "ray"), default="threads")
    parser.add_argument(
        "--rounds", type=int, default=5, help="times that each place is measured (default: 5)"
    )


def measure_resume(options: argparse.Namespace, asked: Asked) -> int:
    """Measure, print the table; 0 when every resume took at most 1.3 times as long as one window."""
    line, size = ProgressLine(sys.stderr), read_size(options.size, "--size")
    rows, worst = [], 0.0
    for size_bytes in (size // 4, size):
        # windows of one size, so that the longer epoch has four times as many
        paths = find_data(replace(asked, size_bytes=size_bytes), line)
        with tempfile.TemporaryDirectory() as folder:
            pipe = _chain(paths, Path(folder) / "manifest", size // 4 // _WINDOWS, options.executor)
            states = {share: _state_at(pipe, share) for share in _PLACES}
            _seconds_to_first(pipe, None)
            for share, state in states.items():
                line.start(f"resuming at {share:.0%} of {size_bytes / 1e6:,.0f} MB")
                # side by side: both move with the machine
                window, resumed, read = [], [], 0
                for _ in range(options.rounds):
                    window.append(_seconds_to_first(pipe, None)[0])
                    seconds, read = _seconds_to_first(pipe, state)
                    resumed.append(seconds)
                ratio = statistics.median(resumed) / statistics.median(window)
                worst = max(worst, ratio)
                rows.append(
                    [
                        f"{size_bytes / 1e6:,.0f} MB",
                        f"{share:.0%}",
                        str(state["window"]),
                        f"{statistics.median(window):.3f}",
                        f"{statistics.median(resumed):.3f}",
                        f"{ratio:.2f}",
                        f"{read}",
                    ]
                )
    line.finish("resumed")
    heads = ("epoch", "at", "window", "one window s", "resume s", "ratio", "windows read before")
    print(align_table(heads, rows, ("epoch", "window")))
    print(f"a resume may take {_MOST} times as long as a window: {'kept' if worst <= _MOST else 'broken'}")
    return int(worst > _MOST)


def _chain(paths: list[str], manifest: Path, window_bytes: int, executor: str) -> DatasetPipeline:
    windrow.read_parquet(paths).save_manifest(manifest)
    ds = windrow.read_parquet(paths, manifest=manifest, target_block_bytes="4MB")
    pipe = ds.window(bytes_per_window=window_bytes).random_shuffle_each_window(seed=7)
    return pipe.options(executor=executor, progress=False)


def _state_at(pipe: DatasetPipeline, share: float) -> dict[str, Any]:
    with pipe.iterator() as shard:
        shard.skip_batches(int(shard.steps_per_epoch(_BATCH_ROWS) * share), batch_size=_BATCH_ROWS)
        return shard.state_dict()


def _seconds_to_first(pipe: DatasetPipeline, state: dict[str, Any] | None) -> tuple[float, int]:
    """Seconds to the first batch, and how many windows before the state's were worked on."""
    began = time.perf_counter()
    with pipe.iterator(state_dict=state) as shard:
        next(iter(shard.iter_torch_batches(_BATCH_ROWS)))
        seconds = time.perf_counter() - began
        least = 0 if state is None else state["window"]
        return seconds, len({span.window for span in shard.stats().run.spans if span.window < least})
