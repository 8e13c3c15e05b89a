"""``python -m bench gpu``: what share of PCIe batches reach, and how long the GPU waits for them."""

from __future__ import annotations

import argparse

from bench.gpu.device import CudaGpu, measure_rate, measure_wait
from bench.gpu.loaders import LOADERS, Reading
from bench.system.console import (
    ProgressLine,
    add_data,
    add_json,
    add_names,
    print_table,
    read_count,
    write_json,
)
from bench.system.machine import count_cores
from bench.throughput.options import BenchConfig
from bench.throughput.report import open_data
from bench.training.facts import KEY

_HEADS = ("loader", "GB/s", "of PCIe %", "batch ms", "GPU waits %")
_NOTE = (
    "GB/s: tensors that reached the device, without a step. of PCIe: of plain copies out of pinned memory. GPU waits: "
    "of the time after the first epoch, with steps that take the GPU as long as the first loader needs for a batch. "
    "torch shuffles row groups alone."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    add_names(parser, "--loaders", LOADERS, help="what to compare")
    add_data(parser, "2GB")
    parser.add_argument("--batch-size", type=read_count, default=65_536, help="rows of a batch")
    parser.add_argument("--epochs", type=read_count, default=4, help="epochs, at least 2")
    add_json(parser)


def find_gpu() -> CudaGpu | None:
    import torch

    return CudaGpu() if torch.cuda.is_available() else None


def run(options: argparse.Namespace) -> int:
    """Measure and print the table; the exit status is 0 if every loader delivers each row once, or there is no GPU."""
    if options.epochs < 2:
        raise ValueError("--epochs: 2 or more, since the first one is not measured")
    gpu = find_gpu()
    if gpu is None:
        print("no GPU: torch finds no CUDA device on this machine, so there is nothing to measure")
        return 0
    line = ProgressLine()
    config = BenchConfig(size_bytes=options.size_bytes, folder=options.folder)
    facts = open_data(config)
    reading = Reading(
        facts.paths,
        facts.columns,
        options.batch_size,
        options.epochs,
        gpu.device,
        count_cores(),
    )
    whole = (facts.rows, facts.rows * (facts.rows - 1) // 2)
    limit = gpu.copy_rate()
    print(f"{gpu.name}: {limit / 1e9:.1f} GB/s out of pinned memory", flush=True)
    rows, found, breaches, step_seconds = [], [], [], 0.0
    for name in options.loaders:
        line.start(name)
        rates = measure_rate(LOADERS[name], reading, KEY, gpu)
        if set(rates.sums) != {whole}:
            breaches.append(f"{name}: not every row came once in each epoch: {rates.sums}")
        step_seconds = step_seconds or rates.batch_seconds
        gpu.prepare(step_seconds)
        waited = measure_wait(LOADERS[name], reading, gpu)
        line.finish(f"GPU waited {waited:.1%}")
        share = rates.bytes_per_second / limit
        found.append({"loader": name, "gpu": gpu.name, "pcie_share": share, "gpu_waits": waited})
        values = (rates.bytes_per_second / 1e9, 100 * share, 1e3 * rates.batch_seconds, 100 * waited)
        rows.append((name, *(f"{value:.1f}" for value in values)))
    print_table(_HEADS, rows, ("loader",), _NOTE, *breaches)
    write_json(options, {"pcie_bytes_per_second": limit, "loaders": found})
    return int(bool(breaches))
