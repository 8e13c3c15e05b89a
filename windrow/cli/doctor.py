"""``windrow doctor``: checks versions, kernels, limits, Ray, GPUs and storage, and says how to fix what is wrong."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from windrow.cli.checks import Check, check_all
from windrow.cli.command_line import parse_options, print_json, print_line
from windrow.core.terminal_text import format_count

_PROBLEM = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this subcommand."""
    parser.add_argument(
        "--path", action="append", default=[], help="data to reach, such as s3://bucket/data; may be repeated"
    )
    parser.add_argument(
        "--storage-option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="for the paths; may be repeated",
    )
    parser.add_argument(
        "--ray-address",
        default="local",
        metavar="ADDRESS",
        help="of a cluster to join, or auto; by default a small one is started and stopped",
    )
    parser.add_argument(
        "--spill-dir", metavar="DIR", help="for spilled rows and caches, if not the temporary directory"
    )
    parser.add_argument("--quick", action="store_true", help="neither start Ray nor load torch")


def run(arguments: argparse.Namespace) -> int:
    """Run all checks; the exit code is 1 if one found a problem."""
    checks = check_all(
        arguments.path,
        parse_options(arguments.storage_option),
        ray_address=arguments.ray_address,
        spill_dir=arguments.spill_dir,
        quick=arguments.quick,
    )
    if arguments.json:
        print_json([asdict(check) for check in checks])
    else:
        width = max(len(check.name) for check in checks)
        for check in checks:
            print_line(f"{check.status:8} {check.name:{width}}  {check.found}")
            if check.fix:
                print_line(f"{'':8} {'':{width}}  fix: {check.fix}")
        print(_summarise(checks))
    return _PROBLEM if any(check.status == "PROBLEM" for check in checks) else 0


def _summarise(checks: list[Check]) -> str:
    problems = sum(check.status == "PROBLEM" for check in checks)
    warnings = sum(check.status == "WARNING" for check in checks)
    if not problems and not warnings:
        return "everything is well"
    return f"{format_count(problems, 'problem')}, {format_count(warnings, 'warning')}"
