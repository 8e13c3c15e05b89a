"""Measures how uneven the steps of rows of many lengths are, with `windrow.Balance` and without, and proposes one."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.cli.command_line import format_table
from windrow.core.errors import PlanError
from windrow.core.machine import available_cores
from windrow.core.source import BlockAddress
from windrow.dataset.dataset import DatasetPipeline
from windrow.io.catalog.file_source import FileSource
from windrow.pipeline.plan.program import Program
from windrow.pipeline.quality.epoch_order import EpochOrder, full_order
from windrow.pipeline.quality.pictures import plot_steps
from windrow.pipeline.quality.step_costs import (
    GroupTrade,
    RowLimit,
    StepCosts,
    find_row_limit,
    measure_groups,
    measure_steps,
)
from windrow.pipeline.tasks.row_measure import check_measurable, measure_rows
from windrow.shuffle.order.balance import Balance
from windrow.shuffle.order.shard_assignment import ShardAssignment
from windrow.shuffle.order.step_cuts import StepCuts

COSTS = ("length", "length ** 2")
NO_BALANCE, EQUAL, FREE = "without balance", 'rows="equal"', 'rows="free"'
_MICROBATCHES = (2, 4, 8)
_GROUP_STEPS = (5, 20, 100)
# Half a million rows take seconds.
_MAX_ROWS = 2**19
# of which blocks are read
_SAMPLE_SEED = -2
# By less, a step is not worth dividing, nor worth batches of many row counts.
_WORTHWHILE = 0.02
# for a mean of budgets
_LEAST_STEPS = 4
_HEAD = ("imbalance", "worst", "over unavoidable", "worst", "padding", "meet again")


@dataclass(frozen=True, eq=False)
class Lengths:
    """The lengths of rows in the order of the first epoch, or of a sample in a random order."""

    measures: NDArray[np.float32]
    starts: NDArray[
        np.int64
    ]  # (windows + 1,) where windows begin, and the number of rows; a sample is one window
    is_whole: bool
    blocks: int  # that were read
    all_blocks: int


@dataclass(frozen=True, eq=False)
class CostFigures:
    """The steps of each option for one formula of the cost."""

    cost: str
    steps: dict[str, StepCosts]  # by option: the first one without balance, then those of `Balance`
    groups: tuple[GroupTrade, ...]
    limit: RowLimit


@dataclass(frozen=True, eq=False)
class BudgetFigures:
    """The steps of a ``token_budget``."""

    tokens: int
    fill: float  # the mean share of it that batches have, but those of the last step
    rows: tuple[int, int]  # the fewest and the most of a step over all shards


@dataclass(frozen=True, eq=False)
class LengthProposal:
    """What a `Balance` by one column would do, and which one to take."""

    column: str
    lengths: Lengths
    shards: int
    batch_size: int
    figures: tuple[CostFigures, ...]  # the proposal is for the first one
    balance: Balance | None
    budget: BudgetFigures | None  # None: there are too few rows
    reasons: tuple[str, ...]

    @property
    def code(self) -> str:
        """The lines of Python to add; empty where none are proposed."""
        if self.balance is None:
            return ""
        more = "" if self.balance.cost == "length" else f", {self.balance.cost!r}"
        more += "" if self.balance.rows == "equal" else f", rows={self.balance.rows!r}"
        return (
            f"balance = windrow.Balance({self.column!r}{more})\n"
            f"batches = shards[0].iter_batches({self.batch_size}, balance=balance)  # and likewise each other shard"
        )


def propose_balance(
    pipe: DatasetPipeline, column: str, *, shards: int, batch_size: int, costs: Sequence[str] = COSTS
) -> LengthProposal:
    """Measure the steps of a pipeline's first epoch, of a sample if it has more than half a million rows.

    Raises `PlanError` if rows cannot be measured by the column, and a `TransformError` if its values cannot.
    """
    formulas = [Balance(column, cost) for cost in costs]
    lengths = read_lengths(pipe, column)
    assignment = ShardAssignment(shards, batch_size, equal=shards > 1)
    if not lengths.is_whole and len(lengths.measures) >= assignment.step_rows:
        # the last step of a sample is not one of the dataset
        assignment = replace(assignment, drop_last=True)
    figures = tuple(_measure(lengths, assignment, balance) for balance in formulas)
    if not len(figures[0].steps[NO_BALANCE].mean):
        raise PlanError(f"column {column!r}: all rows that were read cost 0, so there is nothing to balance")
    balance, reason = _choose(formulas[0], figures[0], shards)
    limits = tuple(_describe_limit(each, batch_size) for each in figures)
    budget = _measure_budget(lengths.measures, assignment, formulas[0])
    reasons = (reason, *_describe_groups(figures[0]), *_describe_budget(budget, batch_size), *limits)
    return LengthProposal(column, lengths, shards, batch_size, figures, balance, budget, reasons)


def read_lengths(pipe: DatasetPipeline, column: str) -> Lengths:
    """Read one column, and return its numbers or lengths in the order of the first epoch."""
    job = pipe._plan.job()
    source: Any = job.source
    check_measurable(source.schema, column, "--length-column: ")
    if isinstance(source, FileSource):
        # the blocks stay as they are: their cut does not depend on the columns
        source = replace(source, schema=pa.schema([source.schema.field(column)]))
    rows = source.blocks.rows
    chosen = _choose_blocks(rows)
    addresses = source.addresses(chosen)
    reader = source.reader

    def measure(address: BlockAddress) -> NDArray[np.float32]:
        return measure_rows(reader.read(address).select([column]), column, address.origin)

    with ThreadPoolExecutor(available_cores(), thread_name_prefix="windrow-lengths") as threads:
        found = list(threads.map(measure, addresses))
    counts = np.array([len(each) for each in found], np.int64)
    measures = np.concatenate([np.zeros(0, np.float32), *found])
    if not len(measures):
        raise PlanError("the dataset has no rows, so there are no lengths: check the paths and the filter")
    is_whole = len(chosen) == len(rows) and len(measures) <= _MAX_ROWS
    order = (
        EpochOrder(Program(job, 1, False, (0,)).plan(0), counts, job.row_seed)
        if is_whole
        else full_order(counts, _SAMPLE_SEED)
    )
    stored = order.stored_rows(np.arange(min(len(measures), _MAX_ROWS), dtype=np.int64))
    starts = np.minimum(order.window_starts, len(stored))
    return Lengths(measures[stored], starts, is_whole, len(chosen), len(rows))


def _choose_blocks(rows: NDArray[np.int64]) -> list[int]:
    """All blocks, or random ones of about as many rows as are measured, always the same."""
    if int(rows.sum()) <= _MAX_ROWS:
        return list(range(len(rows)))
    blocks = full_order(np.ones(len(rows), np.int64), _SAMPLE_SEED).stored_rows(np.arange(len(rows)))
    count = int(np.searchsorted(np.cumsum(rows[blocks]), _MAX_ROWS)) + 1
    return sorted(blocks[:count].tolist())


def _measure(lengths: Lengths, assignment: ShardAssignment, balance: Balance) -> CostFigures:
    measures = lengths.measures
    steps = {NO_BALANCE: measure_steps(measures, assignment, balance, is_balanced=False)}
    for rows in ("equal", "free"):
        steps[f'rows="{rows}"'] = measure_steps(measures, assignment, replace(balance, rows=rows))
    for parts in _MICROBATCHES:
        if parts <= assignment.batch_rows:
            options = replace(balance, rows="free", microbatches=parts)
            steps[f'rows="free", microbatches={parts}'] = measure_steps(measures, assignment, options)
    most = int(np.diff(lengths.starts).max(initial=0)) // assignment.step_rows
    groups = tuple(
        measure_groups(measures, lengths.starts, assignment, balance, count)
        for count in _GROUP_STEPS
        if count <= most
    )
    limit = find_row_limit(measures, balance, assignment.batch_rows, steps[NO_BALANCE])
    return CostFigures(balance.cost, steps, groups, limit)


def _measure_budget(
    measures: NDArray[np.float32], assignment: ShardAssignment, balance: Balance
) -> BudgetFigures | None:
    """The budget of as many tokens as a batch has on average, but of all rows."""
    tokens = max(1, round(float(np.maximum(measures, 1).mean()) * assignment.batch_rows), int(measures.max()))
    cuts = StepCuts(replace(assignment, balance=balance.with_budget(tokens)), 0)
    cuts.add(measures, is_last=True)
    ends = np.array(cuts.starts[:-1])
    if len(ends) < _LEAST_STEPS:
        return None
    sums = np.add.reduceat(np.maximum(measures, 1), ends)[:-1]
    rows = np.diff(ends)
    fill = float(sums.mean()) / (assignment.shards * tokens)
    return BudgetFigures(tokens, fill, (int(rows.min()), int(rows.max())))


def _choose(balance: Balance, figures: CostFigures, shards: int) -> tuple[Balance | None, str]:
    plain, equal, free = (float(figures.steps[name].imbalances.mean()) for name in (NO_BALANCE, EQUAL, FREE))
    if shards == 1:
        return (
            None,
            "balance: none, since a single trainer waits for no other; microbatches= divides its batches",
        )
    if plain - min(equal, free) < _WORTHWHILE:
        return (
            None,
            f"balance: none, since the most expensive shard of a step costs {plain:.2f} times the mean without it, and "
            f"{min(equal, free):.2f} with it",
        )
    if equal - free < _WORTHWHILE:
        chosen, why = balance, f'{equal:.2f} with rows="equal", which leaves each batch its number of rows'
    else:
        chosen = replace(balance, rows="free")
        why = f'{free:.2f} with rows="free", and {equal:.2f} with rows="equal", which has less choice'
    return chosen, (
        f"balance: by {figures.cost}, the most expensive shard of a step costs {plain:.2f} times the mean without "
        f"balance, {why}"
    )


def _describe_groups(figures: CostFigures) -> list[str]:
    plain = figures.steps[EQUAL].padding
    if not figures.groups or plain - figures.groups[-1].costs.padding < _WORTHWHILE:
        return []
    options = ", ".join(
        f"{each.costs.padding:.0%} with group_by_length={each.steps} ({each.recurrence:.1f} times)"
        for each in figures.groups
    )
    return [
        f"groups: where batches are padded to their longest row, {plain:.0%} of them is padding; {options}. In "
        "brackets: how often two rows of a step meet again in one of the next epoch, compared with chance"
    ]


def _describe_budget(budget: BudgetFigures | None, batch_size: int) -> list[str]:
    if budget is None:
        return []
    return [
        f"budget: token_budget={budget.tokens} holds {batch_size:,} rows of mean length, and the longest row; steps "
        f"fill {budget.fill:.1%} of it, with {budget.rows[0]:,} to {budget.rows[1]:,} rows over all shards"
    ]


def _describe_limit(figures: CostFigures, batch_size: int) -> str:
    limit = figures.limit
    if not limit.share:
        return f"longest: by {figures.cost}, no row alone costs more than the mean of the shards of its step"
    return (
        f"longest: by {figures.cost}, one row alone costs more than the mean of the shards in {limit.share:.1%} of the "
        f"steps, which no division makes even. If longer rows are cut to length {limit.length:,.6g} (the "
        f"{limit.quantile:.2%} quantile), on average none does; dropping the longest helps too. Or take larger "
        f"batches: {limit.batch_rows:,} rows instead of {batch_size:,} cost as much as the longest row on average"
        f"{''.join(_describe_gathered(figures))}"
    )


def _describe_gathered(figures: CostFigures) -> list[str]:
    """Groups let long rows share steps, so that a step's mean is higher where its longest row is."""
    if not figures.groups:
        return []
    group = figures.groups[-1]
    share = float((group.costs.row > group.costs.mean).mean())
    plain, least = (float(each.imbalances.mean()) for each in (figures.steps[EQUAL], group.costs))
    return [
        f". Or gather long rows in the same steps: with group_by_length={group.steps}, one row alone costs more in "
        f"{share:.1%} of the steps, and the most expensive shard costs {least:.2f} instead of {plain:.2f} times the "
        "mean"
    ]


def format_proposal(proposal: LengthProposal) -> str:
    """The table of all options."""
    lengths, step_rows = proposal.lengths, proposal.shards * proposal.batch_size
    rows = len(lengths.measures)
    read = (
        f"all {rows:,} rows, in the order of the first epoch"
        if lengths.is_whole
        else f"a sample of {rows:,} rows in a random order, of {lengths.blocks:,} of {lengths.all_blocks:,} blocks"
    )
    parts = [
        f"Steps of {proposal.shards:,} x {proposal.batch_size:,} = {step_rows:,} rows by {proposal.column}: {read}"
    ]
    for figures in proposal.figures:
        table = [(*_format_row(name, steps), "") for name, steps in figures.steps.items()]
        table += [
            (*_format_row(f"group_by_length={each.steps}", each.costs), f"{each.recurrence:.1f} x")
            for each in figures.groups
        ]
        parts.append(format_table((f'cost="{figures.cost}"', *_HEAD), table, right=range(1, 7)))
    parts.append(
        "imbalance: the most expensive shard, or microbatch, over the mean, as the mean of the steps.\n"
        "unavoidable: the mean, or the most expensive row if that costs more.\n"
        "padding: its share of batches, or microbatches, that are padded to their longest row.\n"
        "meet again: how many times more often than by chance two rows of a step share one of the next epoch, too."
    )
    return "\n\n".join(parts)


def _format_row(name: str, steps: StepCosts) -> tuple[str, ...]:
    values = [value for of in (steps.imbalances, steps.excesses) for value in (of.mean(), of.max())]
    return (name, *(f"{value:.3f}" for value in values), f"{steps.padding:.1%}")


def plot_proposal(proposal: LengthProposal, path: str) -> None:
    """Draw the steps without balance, with equal and with free numbers of rows."""
    panels = [
        (f'cost="{figures.cost}"', {name: figures.steps[name] for name in (NO_BALANCE, EQUAL, FREE)})
        for figures in proposal.figures
    ]
    plot_steps(panels, path)


def describe_proposal(proposal: LengthProposal) -> dict[str, Any]:
    """Return a proposal as plain values."""
    lengths = proposal.lengths
    return {
        "column": proposal.column,
        "rows": len(lengths.measures),
        "whole_epoch": lengths.is_whole,
        "blocks": lengths.blocks,
        "shards": proposal.shards,
        "batch_size": proposal.batch_size,
        "costs": [
            {
                "cost": figures.cost,
                "options": {name: _describe_steps(steps) for name, steps in figures.steps.items()},
                "groups": [
                    {
                        "group_by_length": each.steps,
                        "recurrence": each.recurrence,
                        **_describe_steps(each.costs),
                    }
                    for each in figures.groups
                ],
                "limit": asdict(figures.limit),
            }
            for figures in proposal.figures
        ],
        "budget": None if proposal.budget is None else asdict(proposal.budget),
        "balance": None if proposal.balance is None else _describe_balance(proposal.balance),
        "code": proposal.code,
        "reasons": list(proposal.reasons),
    }


def _describe_balance(balance: Balance) -> dict[str, Any]:
    names = ("column", "cost", "rows", "microbatches")
    return {name: getattr(balance, name) for name in names}


def _describe_steps(steps: StepCosts) -> dict[str, float]:
    return {
        "steps": len(steps.mean),
        "imbalance": float(steps.imbalances.mean()),
        "worst_imbalance": float(steps.imbalances.max()),
        "over_unavoidable": float(steps.excesses.mean()),
        "worst_over_unavoidable": float(steps.excesses.max()),
        "padding": steps.padding,
    }
