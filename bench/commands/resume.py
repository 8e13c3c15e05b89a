"""``python -m bench resume``: the cost of resuming from a state, anywhere in an epoch."""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import windrow
from bench.system.console import ProgressLine, align_table, read_size
from bench.throughput.options import default_config, find_data
from windrow import DatasetPipeline

_WINDOWS = 10
_BATCH_ROWS = 4096
_MOST = 1.3
# share of the epoch before the state: in the first window, in the middle, and in the last window
_PLACES = (0.05, 0.33, 0.58, 0.97)


def add_resume(parser: argparse.ArgumentParser) -> None:
    """Options of ``resume``."""
    parser.add_argument("--size", default="1.4GB", help="decoded size of the longer epoch (default: 1.4GB)")
    parser.add_argument("--executor", choices=("threads", "ray"), default="threads")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each place (default: 5)")


def run_resume(options: argparse.Namespace) -> int:
    """Measure and print the table; the exit status is 0 if no resume took longer than 1.3 windows."""
    line, size = ProgressLine(sys.stderr), read_size(options.size, "--size")
    rows, worst = [], 0.0
    for size_bytes in (size // 4, size):
        # windows of the same size, so that the longer epoch has four times as many
        paths = find_data(default_config(size_bytes=size_bytes), line)
        with tempfile.TemporaryDirectory() as folder:
            pipe = _make_pipeline(paths, Path(folder) / "manifest", size // 4 // _WINDOWS, options.executor)
            states = {share: _state_at(pipe, share) for share in _PLACES}
            _seconds_to_first(pipe, None)
            for share, state in states.items():
                line.start(f"resuming at {share:.0%} of {size_bytes / 1e6:,.0f} MB")
                # alternating, because the speed of the machine drifts
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
    print(f"a resume may take {_MOST} times as long as a window: {'met' if worst <= _MOST else 'NOT met'}")
    return int(worst > _MOST)


def _make_pipeline(paths: list[str], manifest: Path, window_bytes: int, executor: str) -> DatasetPipeline:
    windrow.read_parquet(paths).save_manifest(manifest)
    ds = windrow.read_parquet(paths, manifest=manifest, target_block_bytes="4MB")
    pipe = ds.window(bytes_per_window=window_bytes).random_shuffle_each_window(seed=7)
    return pipe.options(executor=executor, progress=False)


def _state_at(pipe: DatasetPipeline, share: float) -> dict[str, Any]:
    with pipe.iterator() as shard:
        shard.skip_batches(int(shard.steps_per_epoch(_BATCH_ROWS) * share), batch_size=_BATCH_ROWS)
        return shard.state_dict()


def _seconds_to_first(pipe: DatasetPipeline, state: dict[str, Any] | None) -> tuple[float, int]:
    """Seconds to the first batch, and number of windows before the state's that were processed."""
    began = time.perf_counter()
    with pipe.iterator(state_dict=state) as shard:
        next(iter(shard.iter_torch_batches(_BATCH_ROWS)))
        seconds = time.perf_counter() - began
        first_window = 0 if state is None else state["window"]
        return seconds, len({span.window for span in shard.stats().run.spans if span.window < first_window})
