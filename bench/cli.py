"""The command line: ``python -m bench COMMAND``; ``--help`` lists the commands."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from bench.system.console import OptionHelp, Parser

# modules that have ``add_options(parser)`` and ``run(options)``, and say in their first line what they are for
_COMMANDS = {
    "throughput": "bench.commands.throughput",
    "peers": "bench.commands.peers",
    "memory": "bench.commands.memory",
    "mesh": "bench.commands.mesh",
    "mixture": "bench.commands.mixture",
    "balance": "bench.commands.balance",
    "scale": "bench.scale.command",
    "simulate": "bench.simulate.command",
    "formats": "bench.formats.command",
    "operations": "bench.operations.command",
    "preparation": "bench.preparation.command",
    "shapes": "bench.shapes.command",
    "observability": "bench.commands.observability",
    "cores": "bench.commands.cores",
    "store": "bench.remote.command",
    "chaos": "bench.chaos.command",
    "netns": "bench.netns.command",
    "gpu": "bench.commands.gpu",
    "machine": "bench.commands.machine",
    "demo": "bench.commands.demo",
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser(prog="python -m bench", description="Benchmarks of windrow and comparable libraries.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, path in _COMMANDS.items():
        module = import_module(path)
        purpose = str(module.__doc__).splitlines()[0].partition(": ")[2].rstrip(".")
        command = commands.add_parser(name, help=purpose, formatter_class=OptionHelp)
        module.add_options(command)
        command.set_defaults(run=module.run)
    try:
        options = parser.parse_args(arguments)
        return int(options.run(options))
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    except ValueError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
