"""The command line: ``python -m bench COMMAND``; ``--help`` lists the commands."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType

from bench.chaos import command as chaos
from bench.commands import balance, cores, demo, machine, memory, mesh, mixture, observability, throughput
from bench.formats import command as formats
from bench.gpu import command as gpu
from bench.netns import command as netns
from bench.operations import command as operations
from bench.preparation import command as preparation
from bench.remote import command as store
from bench.rivals import command as peers
from bench.scale import command as scale
from bench.shapes import command as shapes
from bench.simulate import command as simulate
from bench.system.console import OptionHelp, Parser

# each has ``add_options(parser)`` and ``run(options)``, and says in its first line what it is for
_COMMANDS: dict[str, ModuleType] = {
    "throughput": throughput,
    "peers": peers,
    "memory": memory,
    "mesh": mesh,
    "mixture": mixture,
    "balance": balance,
    "scale": scale,
    "simulate": simulate,
    "formats": formats,
    "operations": operations,
    "preparation": preparation,
    "shapes": shapes,
    "observability": observability,
    "cores": cores,
    "store": store,
    "chaos": chaos,
    "netns": netns,
    "gpu": gpu,
    "machine": machine,
    "demo": demo,
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser(prog="python -m bench", description="Benchmarks of windrow and comparable libraries.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, module in _COMMANDS.items():
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
