"""``windrow status``: shows the pipelines that run on a Ray cluster, their rates and waits, and what limits each."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, Any

from windrow.cli.command_line import print_json
from windrow.cli.status_table import Rates, render_status
from windrow.cli.watched_cluster import WatchedCluster, watching

if TYPE_CHECKING:
    from rich.console import Console

_LEAST_SECONDS, _MOST_SECONDS = 0.1, 3_600.0
# where the width of a terminal is not known
_WIDTH = 110


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this subcommand."""
    parser.add_argument(
        "address",
        nargs="?",
        metavar="ADDRESS",
        help="of the Ray cluster, such as 10.0.0.1:6379; by default RAY_ADDRESS, or the only one of this machine",
    )
    parser.add_argument(
        "--once", action="store_true", help="print one table, as where standard output is no terminal"
    )
    parser.add_argument(
        "--interval",
        type=_parse_interval,
        default=1.0,
        metavar="SECONDS",
        help="between updates; by default 1",
    )


def _parse_interval(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not _LEAST_SECONDS <= seconds <= _MOST_SECONDS:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of seconds from {_LEAST_SECONDS} to {_MOST_SECONDS}"
        )
    return seconds


def run(arguments: argparse.Namespace) -> int:
    """Show the status once, or until the user interrupts it."""
    from rich.console import Console

    is_terminal = sys.stdout.isatty()
    with watching(arguments.address) as cluster:
        if arguments.json:
            print_json({"address": cluster.address, **cluster.status()})
            return 0
        console = Console(width=None if is_terminal else _WIDTH, highlight=False, emoji=False, markup=False)
        if arguments.once or not is_terminal:
            console.print(render_status(cluster.address, cluster.status(), time.time(), console.width))
            return 0
        _show_live(cluster, console, arguments.interval)
    return 0


def _show_live(cluster: WatchedCluster, console: Console, interval: float) -> None:
    from rich.live import Live

    rates, due = Rates(), time.monotonic()
    with Live(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as live:
        while True:
            status: dict[str, Any] = cluster.status()
            rates.note(status["pipelines"])
            shown = render_status(cluster.address, status, time.time(), console.width, rates)
            live.update(shown, refresh=True)
            due = max(due + interval, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))
