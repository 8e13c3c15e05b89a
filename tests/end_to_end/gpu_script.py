"""Batch inference on logical GPUs, as a program with a Ray of its own: images in, answers out, twice."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import ray

import windrow
from tests.end_to_end.image_jobs import Model, decode_row


class GpuModel(Model):
    """The model, where it finds a GPU."""

    def __init__(self) -> None:
        super().__init__(needs_gpu=True)


def preprocess(row: dict[str, Any]) -> dict[str, Any]:
    return decode_row(row)


def main(images: str, out: Path) -> None:
    # a fraction of a GPU for each of two actors
    windrow.read_images(images, size=(8, 8), include_paths=True).map_batches(
        GpuModel, batch_size=16, compute=windrow.ActorPool(size=2), num_gpus=0.25
    ).write_json(out / "fractions")
    # as in Ray's talk
    windrow.read_binary_files(images, include_paths=True).window(blocks_per_window=2).map(
        preprocess
    ).map_batches(GpuModel, batch_size=256, num_gpus=1).write_json(out / "whole")


if __name__ == "__main__":
    ray.init(
        address="local",
        num_cpus=2,
        num_gpus=1,
        object_store_memory=100 * 2**20,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
    )
    main(sys.argv[1], Path(sys.argv[2]))
    ray.shutdown()
