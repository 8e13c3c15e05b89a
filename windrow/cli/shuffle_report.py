"""``windrow shuffle-report``: how close windows of some sizes come to a full shuffle, without reading data."""

from __future__ import annotations

import argparse

import windrow
from windrow.cli.command_line import (
    add_pipeline_arguments,
    add_source_arguments,
    make_pipeline,
    open_dataset,
    print_json,
    print_text,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this subcommand."""
    add_source_arguments(parser)
    parser.add_argument(
        "--window",
        action="append",
        metavar="SIZE",
        help="bytes of a window, such as 1GiB, or 'all' for the whole dataset, the default; repeat it to compare sizes",
    )
    add_pipeline_arguments(parser)
    parser.add_argument(
        "--count", action="store_true", help="count rows by reading where files do not state them"
    )
    parser.add_argument("--plot", metavar="FILE", help="draw the measures into a .png, .svg or .pdf")


def run(arguments: argparse.Namespace) -> int:
    """Measure each window size."""
    dataset = open_dataset(arguments)
    reports = []
    for window in arguments.window or [None]:
        pipe = make_pipeline(dataset, arguments, None if window == "all" else window)
        reports.append(windrow.shuffle_report(pipe, batch_size=arguments.batch_size, count=arguments.count))
    if arguments.plot:
        reports[0].plot(arguments.plot, beside=reports[1:])
    if arguments.json:
        print_json([report.to_dict() for report in reports])
    else:
        print_text("\n\n".join(map(str, reports)))
    return 0
