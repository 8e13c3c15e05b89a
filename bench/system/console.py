"""What the terminal shows and takes: a progress line, tables, the values of options, and where results are written."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TextIO

from windrow.core.byte_sizes import parse_bytes
from windrow.core.errors import PlanError
from windrow.core.terminal_text import align_columns

_WIDTH = 24
_LOG_SECONDS = 15.0


class ProgressLine:
    """Shows the current step and its duration: in place on a terminal, else on lines of their own."""

    def __init__(self) -> None:
        self._stream: TextIO = sys.stderr
        self._terminal = self._stream.isatty()
        self._title = ""
        self._began = self._shown = 0.0

    def start(self, title: str) -> None:
        self._title = title
        self._began = self._shown = time.monotonic()
        self._write(f"{title} …", last=not self._terminal)

    def update(self, done: float, note: str) -> None:
        now = time.monotonic()
        if now - self._shown < (0.1 if self._terminal else _LOG_SECONDS):
            return
        self._shown = now
        filled = round(_WIDTH * min(1.0, max(0.0, done)))
        bar = "█" * filled + "░" * (_WIDTH - filled)
        text = f"{self._title}  {bar} {done:4.0%}  {note}  {now - self._began:.0f} s"
        self._write(text, last=not self._terminal)

    def finish(self, note: str) -> None:
        self._write(f"{self._title}  {note}", last=True)

    def _write(self, text: str, last: bool) -> None:
        if self._terminal:
            self._stream.write("\r\x1b[2K" + text + ("\n" if last else ""))
        elif last:
            self._stream.write(text + "\n")
        self._stream.flush()


def align_table(heads: Sequence[str], rows: Sequence[Sequence[str]], texts: Collection[str]) -> str:
    """Align columns to the right, except those named in ``texts``."""
    rule = ["-" * max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    numbers = [at for at, head in enumerate(heads) if head not in texts]
    return "\n".join(align_columns([heads, rule, *rows], numbers))


def print_table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], texts: Collection[str], *notes: str
) -> None:
    """Print a table and what is below it; columns are aligned to the right, except those named in ``texts``."""
    print(align_table(heads, rows, texts), *notes, sep="\n", flush=True)


def write_cell(value: float | None, pattern: str) -> str:
    return "-" if value is None else pattern.format(value)


def read_size(text: str) -> int:
    """The type of options that are numbers of bytes."""
    try:
        return parse_bytes(text, "size")
    except PlanError:
        message = f"{text} is not a size: write a number and a unit, like 1.4GB or 256MiB"
        raise argparse.ArgumentTypeError(message) from None


def read_count(text: str) -> int:
    """The type of options that are whole numbers from 1 on."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} must be at least 1")
    return number


def read_counts(text: str) -> list[int]:
    return list(map(read_count, text.split(",")))


def add_names(
    parser: argparse.ArgumentParser,
    option: str,
    known: Iterable[str],
    *,
    default: Iterable[str] | None = None,
    help: str,
) -> None:
    """Add an option of some of the known names, all by default; they are given in any order."""
    names = tuple(known)
    chosen = ",".join(names if default is None else default)
    choose, text = partial(_choose_names, known=names), f"{help}, of {', '.join(names)}"
    parser.add_argument(option, type=choose, default=chosen, metavar="A,B", help=text)


def _choose_names(text: str, known: Sequence[str]) -> list[str]:
    names: list[str] = text.split(",")
    unknown = [name for name in names if name not in known]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]}: choose from {', '.join(known)}")
    return [name for name in known if name in names]


def add_data(parser: argparse.ArgumentParser, size: str, folder: str = ".bench") -> None:
    """Add options of generated data."""
    parser.add_argument(
        "--size",
        dest="size_bytes",
        type=read_size,
        default=size,
        help="decoded size of the data, with a unit",
    )
    parser.add_argument("--folder", type=Path, default=Path(folder), help="folder of generated data")


def add_turns(parser: argparse.ArgumentParser, *, rounds: int, epochs: int | None = None) -> None:
    """Add options of what is measured in turns."""
    parser.add_argument("--rounds", type=read_count, default=rounds, help="measurements of each, in turns")
    if epochs is not None:
        parser.add_argument("--epochs", type=read_count, default=epochs, help="epochs in each")


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", type=Path, metavar="PATH", help="write all results as JSON")


def write_json(options: argparse.Namespace, content: dict[str, Any]) -> None:
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(content, indent=1))


class Parser(argparse.ArgumentParser):
    """A parser whose errors are ValueErrors, like those of what follows."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


class OptionHelp(argparse.HelpFormatter):
    """Names the default of every option that has one."""

    def _get_help_string(self, action: argparse.Action) -> str:
        has_default = action.default not in (None, False, argparse.SUPPRESS)
        return f"{action.help} (default: %(default)s)" if has_default else str(action.help)
