"""The command line: ``python -m bench COMMAND``; ``--help`` lists the commands."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench.chaos.command import add_chaos, run_command
from bench.commands.launched import measure_launched
from bench.commands.memory import measure_memory
from bench.commands.observability import add_observability, run_observability
from bench.commands.resume import add_resume, measure_resume
from bench.commands.throughput import measure
from bench.executors.command import add_executors, run_executors
from bench.formats.command import add_formats, run_formats
from bench.gpu.command import add_gpu, run_gpu
from bench.netns.command import add_netns, run_netns
from bench.operations.command import add_operations, run_operations
from bench.remote.command import add_store, measure_store
from bench.rivals.command import add_peers
from bench.scale.command import add_scale, run_scale
from bench.shapes.command import add_shapes, run_shapes
from bench.simulate.command import add_simulate, run_simulate
from bench.stacks.command import add_stacks, run_stacks
from bench.system.console import ProgressLine, read_size
from bench.throughput.options import (
    add_data,
    add_memory,
    add_throughput,
    find_data,
    read_memory,
    read_ranks,
    read_throughput,
)

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand and return the exit status."""
    options = _make_parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    except ValueError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Benchmarks of windrow and comparable libraries."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    throughput = commands.add_parser(
        "throughput", help="compare throughput, waiting, memory and exactly-once delivery of several systems"
    )
    add_throughput(throughput)
    throughput.set_defaults(run=_run_throughput)
    peers = commands.add_parser(
        "peers",
        help="compare windrow with all rivals, each in a virtual environment that is set up if missing",
    )
    add_peers(peers)
    memory = commands.add_parser(
        "memory",
        help="stream ten times the memory limit: check that nothing is spilled and the estimate holds",
    )
    add_memory(memory)
    memory.set_defaults(run=lambda options: measure_memory(read_memory(options)))
    scale = commands.add_parser("scale", help="run the real planner and scheduler on simulated clusters")
    add_scale(scale)
    scale.set_defaults(run=run_scale)
    simulation = commands.add_parser(
        "simulate",
        help="run the real scheduler and coordinator in a simulated cluster with injected faults, by seed",
    )
    add_simulate(simulation)
    simulation.set_defaults(run=run_simulate)
    formats = commands.add_parser(
        "formats", help="compare epochs of each format with reads by the underlying library alone"
    )
    add_formats(formats)
    formats.set_defaults(run=run_formats)
    operations = commands.add_parser(
        "operations",
        help="compare map_batches, inference, groupby and sort with plain loops, Polars and Ray Data",
    )
    add_operations(operations)
    operations.set_defaults(run=run_operations)
    shapes = commands.add_parser(
        "shapes",
        help="measure shuffled epochs of compressed, nullable, nested and textual Parquet files beside a raw scan",
    )
    add_shapes(shapes)
    shapes.set_defaults(run=run_shapes)
    executors = commands.add_parser(
        "executors", help="compare trainers on threads and on Ray, and find where Ray's core seconds go"
    )
    add_executors(executors)
    executors.set_defaults(run=run_executors)
    observability = commands.add_parser(
        "observability",
        help="measure what stats(), timelines and metrics cost, with and without them in turns",
    )
    add_observability(observability)
    observability.set_defaults(run=run_observability)
    resume = commands.add_parser(
        "resume", help="measure the cost of resuming from a state, anywhere in an epoch"
    )
    add_resume(resume)
    resume.set_defaults(run=_run_resume)
    store = commands.add_parser(
        "store", help="read from an S3 server: locally, with latency, and with limited bandwidth"
    )
    add_store(store)
    store.set_defaults(run=_run_store)
    chaos = commands.add_parser(
        "chaos",
        help="kill processes of a real Ray cluster while trainers read, and compare the delivered rows",
    )
    add_chaos(chaos)
    chaos.set_defaults(run=run_command)
    netns = commands.add_parser(
        "netns",
        help="run torchrun on nodes in network namespaces with limited and failing links (needs root)",
    )
    add_netns(netns)
    netns.set_defaults(run=_run_netns)
    stacks = commands.add_parser(
        "stacks", help="measure how long a trainer of each framework waits for batches"
    )
    add_stacks(stacks)
    stacks.set_defaults(run=_run_stacks)
    gpu = commands.add_parser(
        "gpu", help="measure the share of PCIe that batches reach, and how long the GPU waits for them"
    )
    add_gpu(gpu)
    gpu.set_defaults(run=_run_gpu)
    demo = commands.add_parser(
        "demo", help="two Ray trainers, and two ranks of torchrun, on about 300 MB, in a minute or two"
    )
    demo.add_argument("--small", action="store_true", help="a tenth of the data, for CI")
    demo.set_defaults(run=_run_demo)
    data = commands.add_parser("data", help="only generate the data")
    add_data(data)
    data.set_defaults(run=_make_only)
    return parser


def _make_only(options: argparse.Namespace) -> int:
    every = _make_parser().parse_args(["throughput"])
    config = replace(
        read_throughput(every),
        kind=options.kind,
        size_bytes=read_size(options.size, "--size"),
        folder=options.folder,
    )
    find_data(config, ProgressLine(sys.stderr))
    return 0


def _run_throughput(options: argparse.Namespace) -> int:
    config = read_throughput(options)
    return measure_launched(config, read_ranks(options)) if options.launcher else measure(config)


def _run_resume(options: argparse.Namespace) -> int:
    return measure_resume(options, read_throughput(_make_parser().parse_args(["throughput"])))


def _run_store(options: argparse.Namespace) -> int:
    return measure_store(options, read_throughput(_make_parser().parse_args(["throughput"])))


def _run_netns(options: argparse.Namespace) -> int:
    return run_netns(options, read_throughput(_make_parser().parse_args(["throughput"])))


def _run_gpu(options: argparse.Namespace) -> int:
    return run_gpu(options, read_throughput(_make_parser().parse_args(["throughput"])))


def _run_stacks(options: argparse.Namespace) -> int:
    return run_stacks(options, read_throughput(_make_parser().parse_args(["throughput"])))


def _run_demo(options: argparse.Namespace) -> int:
    size = "30MB" if options.small else "300MB"
    every = _make_parser().parse_args(
        [
            "throughput",
            "--size",
            size,
            "--executor",
            "ray",
            "--peers",
            "scan,windrow-torchrun,windrow-ray-training",
        ]
    )
    return measure(
        replace(
            read_throughput(every),
            epochs=3,
            trainers=2,
            batch_size=4096 if options.small else 16_384,
            equal=True,
            json=Path(".bench/demo.json"),
            plot=Path(".bench/demo.png"),
        )
    )
