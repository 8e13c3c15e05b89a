"""``windrow timeline``: saves the timeline of a pipeline that is running on a Ray cluster."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from windrow.cli.command_line import print_json, print_line
from windrow.cli.watched_cluster import watching
from windrow.core.errors import PlanError
from windrow.pipeline.statistics.phases import Span
from windrow.pipeline.timeline.timeline import Timeline, check_timeline_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this subcommand."""
    parser.add_argument(
        "address",
        metavar="ADDRESS",
        help="of the Ray cluster, such as 10.0.0.1:6379, or auto: that of this machine",
    )
    parser.add_argument(
        "file", metavar="FILE", help=".json for Perfetto, or .png, .svg or .pdf for a picture"
    )
    parser.add_argument(
        "--pipeline", metavar="ID", help="which, by its id in windrow status, if several are running"
    )


def run(arguments: argparse.Namespace) -> int:
    """Fetch the spans that the coordinator has, and save them."""
    target = Path(arguments.file)
    if not target.absolute().parent.is_dir():
        raise PlanError(f"{arguments.file}: there is no such directory")
    check_timeline_path(target)
    with watching(arguments.address) as cluster:
        found = cluster.spans(arguments.pipeline)
    timeline = Timeline(tuple(_read_span(**fields) for fields in found["spans"]))
    if not timeline.spans:
        raise PlanError(
            f"pipeline {found['id']} has no timeline yet: nothing has been read, or it has options(profile=False)"
        )
    save(timeline, target)
    if arguments.json:
        print_json({"pipeline": found["id"], "file": str(target), "spans": len(timeline.spans)})
    else:
        opened = (
            ": open it at https://ui.perfetto.dev or in chrome://tracing" if target.suffix == ".json" else ""
        )
        print_line(f"{timeline}")
        print_line(f"{target} has the timeline of pipeline {found['id']}{opened}")
    return 0


def _read_span(**fields: object) -> Span:
    """A span of this version; another one may have more fields, or fewer."""
    known = {name: value for name, value in fields.items() if name in Span._fields}
    known["phases"] = tuple((name, seconds) for name, seconds in known.get("phases", ()))  # type: ignore[attr-defined]
    return Span(**known)  # type: ignore[arg-type]


def save(timeline: Timeline, target: Path) -> None:
    """Save a timeline; until it is whole, the file has what it had before."""
    with tempfile.TemporaryDirectory(prefix=".windrow-", dir=target.absolute().parent) as folder:
        made = Path(folder) / target.name
        timeline.save(made)
        made.replace(target)
