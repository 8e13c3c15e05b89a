"""The command ``windrow``: parses arguments, runs a subcommand, and turns errors into one line and an exit code."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import windrow
from windrow.cli import doctor, explain, inspect, premix, shuffle_report, status, timeline, tune
from windrow.cli.command_line import print_line
from windrow.core.errors import WindrowError
from windrow.core.system.files import open_file

_COMMANDS = {
    "inspect": inspect,
    "explain": explain,
    "tune": tune,
    "shuffle-report": shuffle_report,
    "premix": premix,
    "status": status,
    "timeline": timeline,
    "doctor": doctor,
}
_FAILED, _WRONG_ARGUMENTS, _INTERRUPTED = 1, 2, 130
_CODES = "exit codes: 0 done; 1 it failed, or doctor found a problem; 2 wrong arguments; 130 interrupted"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with ``arguments``, by default those of the process, and return its exit code.

    >>> main(["inspect", "no-such-file.parquet"])
    1
    """
    parser = _make_parser()
    given = sys.argv[1:] if arguments is None else arguments
    if not given:
        parser.print_help(sys.stderr)
        parser.exit(_WRONG_ARGUMENTS)
    parsed = parser.parse_args(given)
    try:
        code: int = parsed.run(parsed)
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return _INTERRUPTED
    except BrokenPipeError:
        # the reader, such as head, has seen enough; Python would complain once more as it flushes at exit
        os.dup2(open_file(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (WindrowError, OSError, MemoryError) as error:
        text = " ".join(str(error).split()) or type(error).__name__
        print_line(f"windrow {parsed.command}: {text}", file=sys.stderr)
        return _FAILED
    return code


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="windrow",
        description="Looks at data, plans pipelines, watches runs and checks machines.",
        epilog=_CODES,
    )
    parser.add_argument("--version", action="version", version=f"windrow {windrow.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for name, module in _COMMANDS.items():
        summary = (module.__doc__ or "").partition(": ")[2].partition(".\n")[0].rstrip(".")
        command = commands.add_parser(name, help=summary, description=f"{summary[:1].upper()}{summary[1:]}")
        module.add_arguments(command)
        command.add_argument("--json", action="store_true", help="print JSON instead of text")
        command.set_defaults(run=module.run)
    return parser
