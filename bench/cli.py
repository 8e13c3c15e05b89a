"""The command line: ``python -m bench COMMAND``; ``--help`` lists the commands."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench.asked import find_data
from bench.chaos.command import add_chaos, run_command
from bench.formats.command import add_formats, run_formats
from bench.options import add_data, add_memory, add_throughput, read_memory, read_throughput
from bench.progress import ProgressLine
from bench.remote.command import add_store, measure_store
from bench.resume import add_resume, measure_resume
from bench.rivals.options import add_peers
from bench.scale.command import add_scale, run_scale
from bench.simulate.command import add_simulate, run_simulate
from bench.sizes import read_size
from bench.throughput import measure
from bench.tight import measure_memory

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
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure windrow beside its rivals.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    throughput = commands.add_parser(
        "throughput", help="rows, bytes, waiting, memory and exactly-once, side by side"
    )
    add_throughput(throughput)
    throughput.set_defaults(run=lambda options: measure(read_throughput(options)))
    peers = commands.add_parser(
        "peers", help="every rival beside windrow, in environments of their own that it sets up"
    )
    add_peers(peers)
    memory = commands.add_parser(
        "memory", help="ten times the memory streams through: nothing spilled, the promise kept"
    )
    add_memory(memory)
    memory.set_defaults(run=lambda options: measure_memory(read_memory(options)))
    scale = commands.add_parser("scale", help="the real planner and scheduler on simulated clusters")
    add_scale(scale)
    scale.set_defaults(run=run_scale)
    simulation = commands.add_parser(
        "simulate", help="whole runs of the real scheduler and coordinator in a cluster that fails, by seed"
    )
    add_simulate(simulation)
    simulation.set_defaults(run=run_simulate)
    formats = commands.add_parser(
        "formats", help="each format's epoch beside what the library behind it reads alone"
    )
    add_formats(formats)
    formats.set_defaults(run=run_formats)
    resume = commands.add_parser("resume", help="what it costs to go on from a state, anywhere in an epoch")
    add_resume(resume)
    resume.set_defaults(run=_run_resume)
    store = commands.add_parser(
        "store", help="epochs out of an S3 store, near, far away, and behind a narrow line"
    )
    add_store(store)
    store.set_defaults(run=_run_store)
    chaos = commands.add_parser(
        "chaos", help="a real cluster whose processes are killed while trainers read: the same rows?"
    )
    add_chaos(chaos)
    chaos.set_defaults(run=run_command)
    demo = commands.add_parser("demo", help="two Ray trainers on about 300 MB, in a minute or two")
    demo.add_argument("--small", action="store_true", help="a tenth of the data, for automatic checks")
    demo.set_defaults(run=_run_demo)
    data = commands.add_parser("data", help="make the data and nothing else")
    add_data(data)
    data.set_defaults(run=_make_only)
    return parser


def _make_only(options: argparse.Namespace) -> int:
    every = _make_parser().parse_args(["throughput"])
    asked = replace(
        read_throughput(every),
        kind=options.kind,
        size_bytes=read_size(options.size, "--size"),
        folder=options.folder,
    )
    find_data(asked, ProgressLine(sys.stderr))
    return 0


def _run_resume(options: argparse.Namespace) -> int:
    return measure_resume(options, read_throughput(_make_parser().parse_args(["throughput"])))


def _run_store(options: argparse.Namespace) -> int:
    return measure_store(options, read_throughput(_make_parser().parse_args(["throughput"])))


def _run_demo(options: argparse.Namespace) -> int:
    size = "30MB" if options.small else "300MB"
    every = _make_parser().parse_args(
        ["throughput", "--size", size, "--executor", "ray", "--peers", "scan,windrow-ray-training"]
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
