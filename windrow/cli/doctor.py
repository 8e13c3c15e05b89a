"""``windrow doctor``: checks versions, kernels, limits, Ray, GPUs and storage, and says how to fix what is wrong."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

from windrow.cli.checks import (
    Check,
    check_cpus,
    check_disk,
    check_gpu,
    check_kernels,
    check_libraries,
    check_memory,
    check_open_files,
    check_path,
    check_ray,
    check_shared_memory,
    check_system,
)
from windrow.cli.command_line import parse_options, print_json, print_line

__all__ = ["add_arguments", "run"]

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
    checks = _check_all(arguments)
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


def _check_all(arguments: argparse.Namespace) -> list[Check]:
    options = parse_options(arguments.storage_option)
    calls: list[Callable[[], list[Check]]] = [
        check_system,
        check_libraries,
        check_kernels,
        check_cpus,
        check_memory,
        check_shared_memory,
        check_open_files,
        lambda: check_disk(arguments.spill_dir),
        lambda: check_ray(arguments.ray_address, quick=arguments.quick),
        lambda: check_gpu(quick=arguments.quick),
        *(lambda path=path: check_path(path, options) for path in arguments.path),
    ]
    # slow ones wait for other processes or the network, each for a limited time
    with ThreadPoolExecutor(len(calls), thread_name_prefix="windrow-doctor") as threads:
        return [check for found in threads.map(lambda call: call(), calls) for check in found]


def _summarise(checks: list[Check]) -> str:
    problems = sum(check.status == "PROBLEM" for check in checks)
    warnings = sum(check.status == "WARNING" for check in checks)
    if not problems and not warnings:
        return "everything is well"
    return (
        f"{problems} problem{'' if problems == 1 else 's'}, {warnings} warning{'' if warnings == 1 else 's'}"
    )
