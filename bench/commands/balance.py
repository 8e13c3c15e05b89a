"""``python -m bench balance``: how even `windrow.Balance` makes steps, what it costs, and how much less ranks wait."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import windrow
from bench.commands.balance_cost import Lengths, make_lengths, measure_budgets, measure_epochs
from bench.system.console import ProgressLine, print_table, read_count
from bench.system.machine import print_machine
from windrow.pipeline.quality.step_costs import measure_steps
from windrow.shuffle.order.shard_assignment import ShardAssignment

_SHARDS, _BATCH_SIZES = 8, (8, 16, 32)
_COSTS = ("length", "length ** 2")
_RANKS, _ROWS_PER_RANK = 4, 16
# a decoder of two layers, whose longest rows cost as much in attention as in everything else
_WIDTH, _HEADS, _LAYERS, _TOKENS, _CONTEXT = 64, 2, 2, 256, 1_024
# the multiplications of a row but for a common factor: 12 * width ** 2 of weights a token, and attention to all tokens
_STEP_COST = f"{6 * _WIDTH} * length + length ** 2"
_WAYS: dict[str, windrow.Balance | None] = {
    "without": None,
    "equal": windrow.Balance("tokens", _STEP_COST),
    "free": windrow.Balance("tokens", _STEP_COST, rows="free"),
}
_REPEATS = 3
_LEAST_SAVED = 2 / 3
_NOTE = (
    "Cost of the most expensive shard over what is unavoidable (the mean, or the most expensive row if that is more):\n"
    "mean of the steps, and the worst one."
)
_STEP_NOTE = (
    "CPU time of each rank's forward and backward pass, the least of {repeats} runs of the same step.\n"
    "Waiting: the slowest rank minus own, mean of ranks and steps. Saved: of the waiting without balance."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--epochs", type=read_count, default=20, help="orders of each corpus")
    parser.add_argument("--steps", type=int, default=24, help="of training, each in all ways; 0: no training")
    parser.add_argument(
        "--rows", type=int, default=160_000, help="of what its cost is measured on; 0: not measured"
    )
    parser.add_argument("--rounds", type=read_count, default=3, help="measurements of its cost, in turns")


def run(options: argparse.Namespace) -> int:
    """Measure and print the tables; the exit status is 1 if ranks wait more than a third of what they did."""
    print_machine()
    corpora = {"standard library": read_standard_library(), "log-normal": make_lengths(4_096, 100)}
    for name, lengths in corpora.items():
        print(f"{name}: {len(lengths):,} rows, median {np.median(lengths):,.0f}, longest {lengths.max():,}")
    rows = [
        (name, cost, f"{_SHARDS} x {size}", *_measure(lengths, cost, size, options.epochs))
        for name, lengths in corpora.items()
        for cost in _COSTS
        for size in _BATCH_SIZES
    ]
    heads = ("rows", "cost", "step", *(f"{way}{of}" for way in _WAYS for of in ("", ", worst")))
    print_table(heads, rows, ("rows", "cost"), _NOTE)
    if options.rows:
        measure_budgets(options.rows, options.rounds)
        measure_epochs(options.rows, options.rounds)
    return _measure_waiting(options.steps) if options.steps else 0


def read_standard_library() -> Lengths:
    """The bytes of each module of Python's standard library, in the order of their names."""
    folder = Path(sysconfig.get_path("stdlib"))
    modules = sorted(
        path
        for path in folder.rglob("*.py")
        if not {"site-packages", "dist-packages"} & {*path.relative_to(folder).parts}
    )
    return np.array([size for size in (path.stat().st_size for path in modules) if size], np.int64)


def _measure(lengths: Lengths, cost: str, batch_size: int, epochs: int) -> list[str]:
    assignment = ShardAssignment(_SHARDS, batch_size, drop_last=True)
    random = np.random.default_rng(batch_size)
    orders = [random.permutation(lengths).astype(np.float32) for _ in range(epochs)]
    cells = []
    for way, balance in _WAYS.items():
        options = replace(balance or windrow.Balance("tokens"), cost=cost)
        is_balanced = way != "without"
        steps = [measure_steps(order, assignment, options, is_balanced=is_balanced) for order in orders]
        found = np.concatenate([of_order.excesses for of_order in steps])
        cells += [f"{found.mean():.3f}", f"{found.max():.3f}"]
    return cells


def _measure_waiting(steps: int) -> int:
    """Ranks and this machine's cores may be different numbers, so what ranks wait follows from their CPU time."""
    line = ProgressLine()
    lengths = make_lengths(steps * _RANKS * _ROWS_PER_RANK, 100, _CONTEXT)
    batches = {way: _read_batches(lengths, balance) for way, balance in _WAYS.items()}
    line.start(f"{steps} steps on {_RANKS} ranks")
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(_RANKS, mp_context=multiprocessing.get_context("spawn")) as pool,
    ):
        jobs = [
            pool.submit(
                _train, rank, {way: of_rank[rank] for way, of_rank in batches.items()}, f"{folder}/join"
            )
            for rank in range(_RANKS)
        ]
        seconds = np.array([job.result() for job in jobs])  # (ranks, steps, ways)
    line.finish("")
    slowest = seconds.max(axis=0)
    waiting = (slowest - seconds).mean(axis=(0, 1))
    saved = 1 - waiting / waiting[0]
    rows = [
        (
            way,
            f"{1000 * slowest[:, at].mean():.1f}",
            f"{1000 * waiting[at]:.2f}",
            f"{waiting[at] / slowest[:, at].mean():.1%}",
            f"{saved[at]:.0%}",
        )
        for at, way in enumerate(_WAYS)
    ]
    print(f"{_RANKS} ranks x {_ROWS_PER_RANK} rows of up to {_CONTEXT:,} tokens, cost {_STEP_COST!r}")
    heads = ("balance", "slowest rank ms", "waiting ms", "of the step", "saved")
    print_table(heads, rows, ("balance",), _STEP_NOTE.format(repeats=_REPEATS))
    return int(saved[1:].min() < _LEAST_SAVED)


def _read_batches(lengths: Lengths, balance: windrow.Balance | None) -> list[list[list[int]]]:
    """By rank and step, the lengths of the rows of its batch, as windrow delivers them."""
    ds = windrow.from_arrow(pa.table({"tokens": lengths})).options(executor="threads", progress=False)
    shards = ds.repeat(1).random_shuffle_each_window(seed=7).split(_RANKS, equal=True)

    def read(shard: windrow.Shard) -> list[list[int]]:
        batches = shard.iter_batches(_ROWS_PER_RANK, balance=balance)
        return [batch["tokens"].tolist() for batch in batches]

    with ThreadPoolExecutor(_RANKS) as threads:
        return list(threads.map(read, shards))


def _train(rank: int, batches: dict[str, list[list[int]]], rendezvous: str) -> list[list[float]]:
    """By step and way, the CPU seconds of this rank's forward and backward pass; the ways of a step come in turns."""
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=_RANKS
    )
    model = _make_model(torch)
    parameters = list(model.parameters())
    optimiser = torch.optim.SGD(parameters, lr=0.01)
    least: dict[tuple[int, str], float] = {}
    # the first round allocates memory
    for number in range(_REPEATS + 1):
        for step, of_ways in enumerate(zip(*batches.values(), strict=True)):
            for way, lengths in zip(batches, of_ways, strict=True):
                tokens = torch.randint(_TOKENS, (sum(lengths),))
                optimiser.zero_grad()
                began = time.process_time()
                _compute_loss(torch, model, tokens, lengths).backward()
                spent = time.process_time() - began
                for parameter in parameters:
                    torch.distributed.all_reduce(parameter.grad)
                optimiser.step()
                if number:
                    least[step, way] = min(spent, least.get((step, way), np.inf))
    torch.distributed.destroy_process_group()
    return [[least[step, way] for way in batches] for step in range(len(next(iter(batches.values()))))]


def _make_model(torch: Any) -> Any:
    nn = torch.nn
    layers = [
        nn.ModuleDict(
            {
                "norm": nn.LayerNorm(_WIDTH),
                "heads": nn.Linear(_WIDTH, 3 * _WIDTH),
                "joined": nn.Linear(_WIDTH, _WIDTH),
                "feed": nn.Sequential(
                    nn.LayerNorm(_WIDTH),
                    nn.Linear(_WIDTH, 4 * _WIDTH),
                    nn.GELU(),
                    nn.Linear(4 * _WIDTH, _WIDTH),
                ),
            }
        )
        for _ in range(_LAYERS)
    ]
    return nn.ModuleList([nn.Embedding(_TOKENS, _WIDTH), *layers, nn.Linear(_WIDTH, _TOKENS)])


def _compute_loss(torch: Any, model: Any, tokens: Any, lengths: Sequence[int]) -> Any:
    """Rows lie one behind the other without padding; each attends to itself alone."""
    embedding, *layers, head = model
    hidden = embedding(tokens)
    for layer in layers:
        heads = layer["heads"](layer["norm"](hidden)).view(len(tokens), 3, _HEADS, -1).permute(1, 2, 0, 3)
        attended = [
            torch.nn.functional.scaled_dot_product_attention(*(each[None] for each in row))[0]
            for row in heads.split(list(lengths), dim=2)
        ]
        hidden = hidden + layer["joined"](torch.cat(attended, dim=1).transpose(0, 1).flatten(1))
        hidden = hidden + layer["feed"](hidden)
    return torch.nn.functional.cross_entropy(head(hidden), tokens)
