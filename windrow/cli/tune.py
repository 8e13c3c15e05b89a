"""``windrow tune``: proposes window, prefetching and cache for data, memory and trainers, with reasons."""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from importlib.util import find_spec
from typing import Any

from windrow.cli.command_line import (
    add_source_arguments,
    format_reader_call,
    format_table,
    open_dataset,
    print_json,
    print_labelled,
    print_text,
)
from windrow.cli.explain import describe_explanation
from windrow.cli.length_proposal import (
    COSTS,
    LengthProposal,
    describe_proposal,
    format_proposal,
    plot_proposal,
    propose_balance,
)
from windrow.cli.proposal import Candidate, Goal, Proposal, format_size, make_pipe, propose
from windrow.core.byte_sizes import format_bytes, parse_bytes
from windrow.core.errors import PlanError
from windrow.core.machine import free_memory_bytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this subcommand."""
    add_source_arguments(parser)
    parser.add_argument(
        "--memory", metavar="SIZE", help="for loading, such as 64GiB; by default half of what is free"
    )
    parser.add_argument("--trainers", type=int, default=1, metavar="N", help="by default 1")
    parser.add_argument("--batch-size", type=int, default=256, metavar="ROWS", help="by default 256")
    parser.add_argument("--epochs", type=int, metavar="N", help="by default without an end")
    parser.add_argument("--seed", type=int, default=0, help="of the shuffle; by default 0")
    parser.add_argument(
        "--executor",
        choices=("threads", "ray"),
        help="by default ray for several trainers if it is installed, else threads",
    )
    parser.add_argument(
        "--disk", metavar="SIZE", help="free space for a cache; by default that of the temporary directory"
    )
    parser.add_argument(
        "--length-column",
        metavar="NAME",
        help="propose a windrow.Balance too: numbers, or lists, text or binary values whose lengths count",
    )
    parser.add_argument(
        "--cost",
        action="append",
        metavar="FORMULA",
        help="of a row, such as 'length ** 2'; may be repeated; by default length and length ** 2",
    )
    parser.add_argument(
        "--plot", metavar="FILE", help="draw how uneven each step is into a .png, .svg or .pdf"
    )


def run(arguments: argparse.Namespace) -> int:
    """Tune a pipeline."""
    goal = _make_goal(arguments)
    proposal = propose(open_dataset(arguments), goal)
    balance = _propose_balance(proposal, goal, arguments)
    code = format_code(proposal, goal, arguments)
    if balance is not None and balance.code:
        code = f"{code}\n{balance.code}"
    if balance is not None and arguments.plot:
        plot_proposal(balance, arguments.plot)
    if arguments.json:
        described = {} if balance is None else {"balance": describe_proposal(balance)}
        print_json({**_describe(proposal, code), **described})
        return 0
    trainers = "1 trainer" if goal.trainers == 1 else f"{goal.trainers} trainers"
    print(f"For {format_bytes(goal.memory_bytes)} of memory and {trainers} on executor {goal.executor}:\n")
    print_text(code)
    print()
    for reason in (*proposal.reasons, *(() if balance is None else balance.reasons)):
        label, _, text = reason.partition(": ")
        print_labelled(label.removesuffix("_windows"), text)
    print()
    print(_format_sizes(proposal))
    print()
    if balance is not None:
        print_text(format_proposal(balance))
        print()
    print_text(proposal.chosen.explanation)
    return 0


def _propose_balance(proposal: Proposal, goal: Goal, arguments: argparse.Namespace) -> LengthProposal | None:
    """Measure the steps of the proposed pipeline, if a column tells the lengths of its rows."""
    if arguments.length_column is None:
        for option, is_given in (("--cost", arguments.cost), ("--plot", arguments.plot)):
            if is_given:
                raise PlanError(
                    f"{option} is about the lengths of rows: name their column by --length-column"
                )
        return None
    return propose_balance(
        make_pipe(proposal.chosen.dataset, proposal.chosen.window_bytes, goal),
        arguments.length_column,
        shards=goal.trainers,
        batch_size=goal.batch_size,
        costs=arguments.cost or COSTS,
    )


def _make_goal(arguments: argparse.Namespace) -> Goal:
    memory, disk = arguments.memory, arguments.disk
    several = arguments.trainers > 1 and find_spec("ray") is not None
    folder = os.path.realpath(tempfile.gettempdir())
    return Goal(
        memory_bytes=free_memory_bytes() // 2 if memory is None else _parse(memory, "--memory"),
        trainers=arguments.trainers,
        batch_size=arguments.batch_size,
        epochs=arguments.epochs,
        seed=arguments.seed,
        executor=arguments.executor or ("ray" if several else "threads"),
        disk_bytes=shutil.disk_usage(folder).free if disk is None else _parse(disk, "--disk"),
    )


def _parse(text: str, name: str) -> int:
    return parse_bytes(int(text) if text.isdigit() else text, name)


def format_code(proposal: Proposal, goal: Goal, arguments: argparse.Namespace) -> str:
    """The lines of Python that make the proposed pipeline."""
    chosen, target = proposal.chosen, proposal.target_block_bytes
    changed = {} if target is None else {"target_block_bytes": str(format_size(target))}
    window = (
        ""
        if chosen.window_bytes is None
        else f".window(bytes_per_window={format_size(chosen.window_bytes)!r})"
    )
    epochs = "" if goal.epochs is None else str(goal.epochs)
    options = {"executor": goal.executor, **chosen.options}
    sizes = {"memory_limit", "cache_limit"}
    given = ", ".join(
        f"{name}={(format_size(value) if name in sizes else value)!r}" for name, value in options.items()
    )
    lines = [
        f"dataset = {format_reader_call(arguments, **changed)}",
        f"pipe = dataset{window}.repeat({epochs}).random_shuffle_each_window(seed={goal.seed})",
        f"pipe = pipe.options({given})",
        f"shards = pipe.split({goal.trainers}, equal=True)  # with torchrun: pipe.shard() in each process"
        if goal.trainers > 1
        else "shard = pipe.iterator()",
    ]
    return "\n".join(lines)


def _format_sizes(proposal: Proposal) -> str:
    header = ("windows", "size", "memory", "row groups a batch", "of a full shuffle", "pairs meet again")
    rows = [
        _format_size_row(candidate, is_chosen=at == 0)
        for at, candidate in enumerate((proposal.chosen, *proposal.smaller))
    ]
    return format_table(header, rows, right=range(6))


def _format_size_row(candidate: Candidate, *, is_chosen: bool) -> tuple[str, ...]:
    explanation, report = candidate.explanation, candidate.report
    size = format_bytes(explanation.decoded_bytes / max(1, explanation.windows))
    quality = ("unknown", "unknown", "unknown")
    if report is not None:
        often = "" if report.recurrence is None else f"{report.recurrence:.3g} ×"
        quality = (f"{report.groups_per_batch.mean:.4g}", f"{report.groups_ratio:.0%}", often)
    mark = "proposed: " if is_chosen else ""
    return f"{mark}{explanation.windows:,}", size, format_bytes(explanation.budget.total_bytes), *quality


def _describe(proposal: Proposal, code: str) -> dict[str, Any]:
    return {
        "code": code,
        "reasons": list(proposal.reasons),
        "target_block_bytes": proposal.target_block_bytes,
        "chosen": _describe_candidate(proposal.chosen),
        "smaller": [_describe_candidate(candidate) for candidate in proposal.smaller],
    }


def _describe_candidate(candidate: Candidate) -> dict[str, Any]:
    return {
        "bytes_per_window": candidate.window_bytes,
        "options": candidate.options,
        "explanation": describe_explanation(candidate.explanation),
        "shuffle_report": None if candidate.report is None else candidate.report.to_dict(),
    }
