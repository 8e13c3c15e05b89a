"""What `Balance` can be combined with: errors before anything is read."""

from __future__ import annotations

import pyarrow as pa

from windrow.core.errors import PlanError, StateError
from windrow.pipeline.delivery.to_numpy import is_list
from windrow.pipeline.plan.cursor import Cursor
from windrow.pipeline.plan.job import Job
from windrow.pipeline.plan.mixture import Mixture
from windrow.pipeline.tasks.list_limit import check_lists
from windrow.pipeline.tasks.row_measure import check_measurable
from windrow.pipeline.tasks.sequence_packing import SequencePacking
from windrow.shuffle.order.balance import Balance


def check_balance(job: Job, balance: Balance) -> None:
    """Raise PlanError if the rows of a job cannot be divided by cost."""
    refused = {
        "sort() in windows": job.sort is not None,
        "a transform after the shuffle that draws random numbers": any(stage.rng for stage in job.after),
    }
    for name, is_used in refused.items():
        if is_used:
            raise PlanError(f"balance= cannot be combined with {name}: leave one of them out")
    if job.packing is not None:
        _check_packed_balance(job.packing, balance, None if job.before else job.source.schema)
        return
    if job.mixture is not None:
        _check_mixture_balance(job.mixture, balance)
    if not job.before:
        check_measurable(job.source.schema, balance.column)
        if balance.budget is not None and balance.budget.long_rows == "truncate":
            check_lists(job.source.schema, balance.column)


def check_groups(at: Cursor, balance: Balance | None) -> None:
    """Raise StateError if an epoch that was begun in groups by length would go on in another order."""
    groups = at.groups if at.row else None
    if groups is None:
        return
    is_other = balance is None or balance.column != groups.column
    if at.mixed is not None and (is_other or (balance is not None and balance.budget is not None)):
        raise StateError(
            f"the mixture is at row {at.row:,}, in the middle of a group of {groups.steps} steps by length: give "
            f"batch_size= and balance=windrow.Balance({groups.column!r}) up to row {groups.stop_row:,}, where the "
            "group ends"
        )
    if is_other:
        raise StateError(
            f"rows of epoch {at.epoch} up to row {at.row:,} were read with group_by_length={groups.steps} by column "
            f"{groups.column!r}: pass balance=windrow.Balance({groups.column!r}) until the epoch's end, so that the "
            "rest keeps its order, or skip_epoch()"
        )


def _check_mixture_balance(mixture: Mixture, balance: Balance) -> None:
    """Raise PlanError if the rows of a mixture cannot be divided by cost."""
    given = "token_budget" if balance.budget is not None else "group_by_length"
    if balance.budget is None and balance.group_steps is None:
        return
    if mixture.length_column is None:
        raise PlanError(
            f"{given}= needs to know the lengths of all rows of a mixture before any is delivered: give mixture() "
            f"length_column={balance.column!r}, which reads that column of all sources once, or give batch_size="
        )
    if mixture.length_column != balance.column:
        raise PlanError(
            f"{given}= goes by the column {balance.column!r} of Balance, and mixture(length_column="
            f"{mixture.length_column!r}) by another: give both the same"
        )
    if balance.budget is not None and mixture.shares.unit == "steps" and len(mixture.shares.phases) > 1:
        raise PlanError(
            "token_budget= makes steps of any number of rows, and the shares of the mixture change after numbers of "
            "steps: give the schedule in rows, as in Shares.steps({...}, unit='rows')"
        )


def _check_packed_balance(packing: SequencePacking, balance: Balance, schema: pa.Schema | None) -> None:
    """Raise PlanError if sequences cannot be divided by cost; ``schema`` is that of documents, None if unknown."""
    if balance.budget is not None:
        raise PlanError(
            f"token_budget= cannot be combined with pack({packing.seq_len}): every sequence has {packing.seq_len} "
            "tokens, so give batch_size= instead"
        )
    if balance.group_steps is not None:
        raise PlanError(
            f"group_by_length= cannot be combined with pack({packing.seq_len}): every sequence has {packing.seq_len} "
            "tokens"
        )
    lists = [
        name
        for name in packing.columns
        if schema is None or name not in schema.names or is_list(schema.field(name).type)
    ]
    if balance.column not in lists:
        raise PlanError(
            f"Balance(column={balance.column!r}) is not a list column that pack() packs, which are "
            f"{', '.join(map(repr, lists))}: with pack(), the cost of a sequence is the sum over its documents, by the "
            "tokens that each has in it"
        )
