"""Renders the status of a cluster's pipelines: as a table, or as lines where a terminal is too narrow for one."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import windrow
from windrow.core.byte_sizes import format_bytes
from windrow.core.terminal_text import escape_controls, format_count
from windrow.pipeline.statistics.phases import START

if TYPE_CHECKING:
    from rich.console import RenderableType

Run = Mapping[str, Any]

_COLUMNS = ("pipeline", "epoch", "window", "rows/s", "MB/s", "trainers", "waited", "memory")
# by shard and replica, what each trainer reported at some refreshes
_Samples = deque[dict[tuple[int, str], Run]]
# trainers report once a second
_SAMPLES = 10
_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400
_UNKNOWN = "–"


class Rates:
    """What trainers did lately: the difference between the latest report and one of some refreshes ago."""

    def __init__(self) -> None:
        self._samples: dict[str, _Samples] = {}

    def note(self, runs: Sequence[Run]) -> None:
        """Note the reports of a refresh; pipelines that are gone are forgotten."""
        self._samples = {run["name"]: self._samples.get(run["name"], deque(maxlen=_SAMPLES)) for run in runs}
        for run in runs:
            trainers = run.get("trainers", ())
            self._samples[run["name"]].append({(one["shard"], one["replica"]): one for one in trainers})

    def of(self, run: Run) -> Run:
        """The rates of a run, and the share of the time that its trainers waited: since then, if they did anything."""
        samples = self._samples.get(run["name"], deque())
        rows = size = waited = total = 0.0
        for key, now in (samples[-1] if samples else {}).items():
            before = samples[0].get(key)
            if before is None or before["rows"] > now["rows"] or before is now:
                continue
            work = now["work_seconds"] - before["work_seconds"]
            wait = _sum_waits(now) - _sum_waits(before)
            starting = now["waits"].get(START, 0.0) - before["waits"].get(START, 0.0)
            if work + wait > 0:
                rows += (now["rows"] - before["rows"]) / (work + wait)
                size += (now["bytes"] - before["bytes"]) / (work + wait)
                waited, total = waited + wait - starting, total + work + wait - starting
        if len(samples) < 2:
            return run
        share = waited / total if total > 0 else run.get("wait_share", 0.0)
        return {**run, "rows_per_second": rows, "bytes_per_second": size, "wait_share": share}


def _sum_waits(trainer: Run) -> float:
    return float(sum(trainer["waits"].values()))


def render_status(
    address: str, status: Run, now: float, width: int, rates: Rates | None = None
) -> RenderableType:
    """Render what runs on the cluster at an address, at a Unix time, for so many columns of a terminal."""
    from rich.console import Group

    runs = [run if rates is None else rates.of(run) for run in status["pipelines"]]
    if not runs:
        return _line(f"no pipeline is running on the Ray cluster at {address}{_describe_ended(status, now)}")
    head = _line(f"{format_count(len(runs), 'pipeline')} on the Ray cluster at {address}", "bold")
    rows = [_format_cells(run) for run in runs]
    wide = 2 * (len(_COLUMNS) - 1) + sum(
        max(map(len, column)) for column in zip(_COLUMNS, *rows, strict=True)
    )
    if wide > width:
        return Group(
            head, *(part for run, cells in zip(runs, rows, strict=True) for part in _block(run, cells, now))
        )
    return Group(head, _line(""), _table(rows), *(part for run in runs for part in _details(run, now)))


def _table(rows: Sequence[Sequence[str]]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for number, name in enumerate(_COLUMNS):
        table.add_column(name, justify="right" if number else "left", no_wrap=True)
    for cells in rows:
        table.add_row(*map(Text, cells))
    return table


def _block(run: Run, cells: Sequence[str], now: float) -> list[RenderableType]:
    """A pipeline without a table: a line for each value."""
    values = [_line(f"  {name:<9} {cell}") for name, cell in zip(_COLUMNS[1:], cells[1:], strict=True)]
    empty, name, *others = _details(run, now)
    return [empty, name, *values, *others]


def _details(run: Run, now: float) -> list[RenderableType]:
    """Who runs a pipeline on what, since when, and what limits it."""
    began = run.get("started", 0.0)
    since = f", started {time.strftime('%H:%M:%S', time.localtime(began))} ({_format_age(now - began)} ago)"
    who = f"{run.get('program') or 'driver'}, process {run.get('pid')} on {run.get('host')}{since if began else ''}"
    lines: list[RenderableType] = [_line(""), _line(f"{run['id']}  {who}", "bold")]
    lines += [_line(f"  reads {run['source']}")] if run.get("source") else []
    other = run.get("windrow", windrow.__version__)
    if other != windrow.__version__:
        lines.append(_line(f"  runs windrow {other}; this command is {windrow.__version__}", "yellow"))
    if run.get("restarts"):
        lines.append(
            _line(f"  its coordinator was restarted {format_count(run['restarts'], 'time')}", "yellow")
        )
    if run.get("corrupt_blocks"):
        lines.append(_line(f"  skips {format_count(run['corrupt_blocks'], 'corrupt block')}", "yellow"))
    problem = run.get("problem") or (f"it failed: {run['failure']}" if run.get("failure") else "")
    if problem:
        lines.append(_line(f"  {problem}", "red"))
    elif run.get("limit"):
        lines.append(_line(f"  {run['limit']}"))
    else:
        lines.append(_line("  no trainer has reported a batch yet"))
    return lines


def _format_cells(run: Run) -> tuple[str, ...]:
    """The cells of a pipeline's row; epochs and windows are counted from 1, as progress bars do."""
    if "shards" not in run:
        state = escape_controls(str(run.get("state", "")))
        return (str(run["id"]), state, *[_UNKNOWN] * (len(_COLUMNS) - 2))
    epochs, windows = run.get("epochs"), run.get("windows")
    window = run["window"] + 1 if windows is None else min(run["window"] + 1, windows)
    trainers = run.get("trainers", ())
    cells = (
        run["id"],
        f"{run['epoch'] + 1:,}{'' if epochs is None else f'/{epochs:,}'}",
        f"{window:,}{'' if windows is None else f'/{windows:,}'}",
        f"{run['rows_per_second']:,.0f}" if trainers else _UNKNOWN,
        f"{run['bytes_per_second'] / 1e6:,.1f}" if trainers else _UNKNOWN,
        f"{len(trainers):,} of {max(run['shards'], len(trainers)):,}",
        f"{run['wait_share']:.0%}" if trainers else _UNKNOWN,
        f"{format_bytes(run['held_bytes'])} of {format_bytes(run['memory_bytes'])}",
    )
    return tuple(escape_controls(str(cell)) for cell in cells)


def _describe_ended(status: Run, now: float) -> str:
    ended = status.get("ended")
    if not ended:
        return ""
    why = f": {ended['death']}" if ended.get("death") else ""
    return f"; the last one, {ended['id']}, ended {_format_age(now - ended['ended'])} ago{why}"


def _format_age(seconds: float) -> str:
    """Format a time, in its largest unit.

    >>> [_format_age(seconds) for seconds in (5, 150, 7_300, 200_000)]
    ['5 s', '2 min', '2 h', '2 days']
    """
    if seconds < _MINUTE:
        return f"{max(0, seconds):.0f} s"
    if seconds < _HOUR:
        return f"{seconds // _MINUTE:.0f} min"
    return f"{seconds // _HOUR:.0f} h" if seconds < 2 * _DAY else f"{seconds // _DAY:.0f} days"


def _line(text: str, style: str = "") -> RenderableType:
    from rich.text import Text

    return Text(escape_controls(text), style=style, overflow="fold")
