"""The arguments that describe a pipeline, shared by subcommands, and the pipeline that they describe."""

from __future__ import annotations

import argparse
from typing import Any

from windrow.dataset.dataset import Dataset
from windrow.dataset.pipeline import DatasetPipeline

__all__ = ["add_pipeline_arguments", "make_pipeline"]


def add_pipeline_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `make_pipeline` takes, but for the window."""
    parser.add_argument("--blocks-per-window", type=int, metavar="N", help="instead of --window")
    parser.add_argument("--epochs", type=int, metavar="N", help="by default without an end")
    parser.add_argument("--seed", type=int, default=0, help="of the shuffle; by default 0")
    parser.add_argument(
        "--shuffle",
        choices=("rows", "blocks", "none"),
        default="rows",
        help="what is shuffled; by default rows",
    )
    parser.add_argument("--batch-size", type=int, default=256, metavar="ROWS", help="by default 256")


def make_pipeline(
    dataset: Dataset, arguments: argparse.Namespace, window: str | None, **options: Any
) -> DatasetPipeline:
    """Make the pipeline of a dataset; a window of None, without blocks a window, is the whole dataset."""
    pipe: Any = dataset
    if window is not None or arguments.blocks_per_window is not None:
        size = int(window) if window is not None and window.isdigit() else window
        pipe = pipe.window(bytes_per_window=size, blocks_per_window=arguments.blocks_per_window)
    pipe = pipe.repeat(arguments.epochs)
    if arguments.shuffle == "rows":
        pipe = pipe.random_shuffle_each_window(seed=arguments.seed)
    elif arguments.shuffle == "blocks":
        pipe = pipe.randomize_block_order_each_window(seed=arguments.seed)
    made: DatasetPipeline = pipe.options(**options)
    return made
