"""``windrow explain``: what running a pipeline would do and take in memory, without running it."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from windrow.cli.command_line import (
    add_pipeline_arguments,
    add_source_arguments,
    make_pipeline,
    open_dataset,
    print_json,
    print_text,
)
from windrow.pipeline.plan.explanation import Explanation


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this subcommand."""
    add_source_arguments(parser)
    parser.add_argument(
        "--window", metavar="SIZE", help="bytes of a window, such as 1GiB; by default the whole dataset"
    )
    add_pipeline_arguments(parser)
    parser.add_argument("--shards", type=int, default=1, metavar="N", help="number of trainers; by default 1")
    parser.add_argument(
        "--equal", choices=("true", "false", "pad"), default="false", help="how the last step is assigned"
    )
    parser.add_argument("--memory", metavar="SIZE", help="the memory limit, such as 64GiB")
    parser.add_argument("--prefetch-windows", type=int, metavar="N", help="by default 1")
    parser.add_argument("--cache", choices=("memory", "disk"), help="where decoded blocks are cached")
    parser.add_argument("--cache-limit", metavar="SIZE", help="of the cache")
    parser.add_argument("--executor", choices=("auto", "threads", "ray"), help="by default auto")


def run(arguments: argparse.Namespace) -> int:
    """Explain the pipeline."""
    names = {"memory": "memory_limit", "prefetch_windows": "", "cache": "", "cache_limit": "", "executor": ""}
    given = {option or name: getattr(arguments, name) for name, option in names.items()}
    options = {name: value for name, value in given.items() if value is not None}
    pipe = make_pipeline(open_dataset(arguments), arguments, arguments.window, **options)
    equal: Any = {"true": True, "false": False, "pad": "pad"}[arguments.equal]
    explanation = pipe.explain(arguments.shards, equal=equal, batch_size=arguments.batch_size)
    if arguments.json:
        print_json(describe_explanation(explanation))
    else:
        print_text(explanation)
    return 0


def describe_explanation(explanation: Explanation) -> dict[str, Any]:
    """Return an explanation as plain values."""
    found = asdict(explanation)
    found["budget"]["total_bytes"] = explanation.budget.total_bytes
    return found
