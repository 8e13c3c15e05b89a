"""The command line: ``python -m bench COMMAND``; ``--help`` lists the commands."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from bench.chaos.command import add_chaos, run_chaos
from bench.commands.memory import add_memory, run_memory
from bench.commands.mesh import add_mesh, run_mesh
from bench.commands.mixture import add_mixture, run_mixture
from bench.commands.observability import add_observability, run_observability
from bench.commands.throughput import add_demo, run_demo, run_throughput
from bench.executors.command import add_executors, run_executors
from bench.formats.command import add_formats, run_formats
from bench.gpu.command import add_gpu, run_gpu
from bench.netns.command import add_netns, run_netns
from bench.operations.command import add_operations, run_operations
from bench.remote.command import add_store, run_store
from bench.rivals.command import add_peers, run_peers
from bench.scale.command import add_scale, run_scale
from bench.shapes.command import add_shapes, run_shapes
from bench.simulate.command import add_simulate, run_simulate
from bench.stacks.command import add_stacks, run_stacks
from bench.system.console import OptionHelp
from bench.throughput.options import add_throughput

# what a command is for, how its options are added, and how it runs
_Command = tuple[str, Callable[[argparse.ArgumentParser], None], Callable[[argparse.Namespace], int]]
_COMMANDS: dict[str, _Command] = {
    "throughput": (
        "compare throughput, waiting, memory and exactly-once delivery of several systems",
        add_throughput,
        run_throughput,
    ),
    "peers": (
        "compare windrow with all rivals, each in a virtual environment that is set up if missing",
        add_peers,
        run_peers,
    ),
    "memory": (
        "stream ten times the memory limit: check that nothing is spilled and the estimate holds",
        add_memory,
        run_memory,
    ),
    "mesh": ("compare epochs of shards with and without replicas, in turns", add_mesh, run_mesh),
    "mixture": (
        "compare a mixture of several sources with one pipeline over the same data, in turns",
        add_mixture,
        run_mixture,
    ),
    "scale": ("run the real planner and scheduler on simulated clusters", add_scale, run_scale),
    "simulate": (
        "run the real scheduler and coordinator in a simulated cluster with injected faults, by seed",
        add_simulate,
        run_simulate,
    ),
    "formats": (
        "compare epochs of each format with reads by the underlying library alone",
        add_formats,
        run_formats,
    ),
    "operations": (
        "compare map_batches, inference, groupby and sort with plain loops, Polars and Ray Data",
        add_operations,
        run_operations,
    ),
    "shapes": (
        "measure shuffled epochs of compressed, nullable, nested and textual Parquet files beside a raw scan",
        add_shapes,
        run_shapes,
    ),
    "executors": (
        "compare trainers on threads and on Ray, and find where Ray's core seconds go",
        add_executors,
        run_executors,
    ),
    "observability": (
        "measure what stats(), timelines and metrics cost, with and without them in turns",
        add_observability,
        run_observability,
    ),
    "store": (
        "read from an S3 server: locally, with latency, and with limited bandwidth",
        add_store,
        run_store,
    ),
    "chaos": (
        "kill processes of a real Ray cluster while trainers read, and compare the delivered rows",
        add_chaos,
        run_chaos,
    ),
    "netns": (
        "run torchrun on nodes in network namespaces with limited and failing links (needs root)",
        add_netns,
        run_netns,
    ),
    "stacks": ("measure how long a trainer of each framework waits for batches", add_stacks, run_stacks),
    "gpu": (
        "measure the share of PCIe that batches reach, and how long the GPU waits for them",
        add_gpu,
        run_gpu,
    ),
    "demo": (
        "two Ray trainers, and two ranks of torchrun, on about 300 MB, in a minute or two",
        add_demo,
        run_demo,
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Benchmarks of windrow and comparable libraries."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, (purpose, add, run) in _COMMANDS.items():
        command = commands.add_parser(name, help=purpose, formatter_class=OptionHelp)
        add(command)
        command.set_defaults(run=run)
    options = parser.parse_args(arguments)
    try:
        return int(options.run(options))
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    except ValueError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
