"""Where a stream continues: from a state, checked to be of the same stream, or some steps further on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from windrow.core.errors import PlanError, StateError
from windrow.core.integers import as_integer
from windrow.pipeline.checkpoint.mixed_state import resume_mixture, warn_about_renamed
from windrow.pipeline.checkpoint.state import (
    State,
    describe_differences,
    describe_stream,
    make_corrupt_error,
    parse_state,
)
from windrow.pipeline.plan.cursor import Cursor
from windrow.pipeline.plan.job import Job
from windrow.pipeline.plan.mixture_legs import MixtureLegs
from windrow.pipeline.plan.program import Program
from windrow.shuffle.order.balance import Balance
from windrow.shuffle.order.batching import Batching
from windrow.shuffle.order.keys import order_version
from windrow.shuffle.order.shard_assignment import ShardAssignment


def resume(job: Job, state_dict: Mapping[str, Any], *, allow_appended: bool = False) -> tuple[Job, Cursor]:
    """The job that continues from a state, and its cursor."""
    state = parse_state(state_dict)
    job = _check_state(state, job, allow_appended=allow_appended)
    if job.mixture is not None and state.mixture is not None:
        now = describe_stream(job).mixture
        assert now is not None
        warn_about_renamed(state.mixture, now)
        return job, resume_mixture(job.mixture, state.mixture, state.cursor)
    return job, _check_cursor(state.cursor, Program(job, 1, False, (0,)))


def _check_state(state: State, job: Job, *, allow_appended: bool) -> Job:
    """The job that continues from a state: the same, with the state's seed if its own was drawn at random."""
    if job.mixture is not None and allow_appended:
        raise StateError("allow_appended=True is not for mixtures: data that was appended is another source")
    if job.seed_drawn and state.seed is not None:
        job = job.with_seed(state.seed)
    here = describe_stream(job)
    if allow_appended:
        state = _allow_appended(state, here, job)
    if differences := describe_differences(state, here):
        raise StateError(f"the state is not of this stream:{differences}")
    if state.corrupt:
        _check_corrupt(state.corrupt, job)
    return job


def _check_cursor(cursor: Cursor, program: Program) -> Cursor:
    """A state's cursor, checked to lie in a program's stream, and its window to hold its row."""
    epochs = program.job.epochs
    if epochs is not None and (cursor.epoch > epochs or (cursor.epoch == epochs and cursor.row)):
        at = f"in the middle of epoch {cursor.epoch}" if cursor.row else f"at epoch {cursor.epoch}"
        raise StateError(f"the state is {at}, but the pipeline has {epochs}: use repeat(...) for more")
    if cursor.window_row > cursor.row or cursor.window > program.plan(cursor.epoch).windows:
        raise make_corrupt_error(
            f"window {cursor.window} does not hold row {cursor.row} of epoch {cursor.epoch}"
        )
    if cursor.row % program.job.sequence_rows:
        raise make_corrupt_error(f"row {cursor.row} of epoch {cursor.epoch} is inside a sequence")
    if not program.job.rows_known:
        return cursor
    found = program.locate(cursor.epoch, cursor.row)
    # where rows are counted as they are read, the end of a window is not yet the start of the next one
    before = program.locate(cursor.epoch, max(0, cursor.row - 1))
    if found.epoch == cursor.epoch and cursor not in (found, replace(before, row=cursor.row)):
        raise make_corrupt_error(f"row {cursor.row} of epoch {cursor.epoch} lies in another window")
    return replace(found, assigned=cursor.assigned, groups=cursor.groups)


def skip_steps(
    program: Program,
    at: Cursor,
    count: int,
    *,
    batch_rows: int | None,
    drop_last: bool,
    total: int | None,
    balance: Balance | None = None,
) -> Cursor:
    """The cursor ``count`` steps after another, across epochs; ``balance`` tells whether these are grouped by length.

    ``total`` is the number of rows per epoch. If it is None, the cursor stays in its epoch. If
    the row counts of single blocks are unknown, the cursor keeps its window, or the first one of
    its epoch, and rows are counted from there.
    """
    steps, rows = as_integer(count), as_integer(batch_rows)
    if steps is None or steps < 0:
        raise PlanError(f"skip_batches({count!r}): give an integer of 0 or more")
    if rows is None or rows < 1:
        raise PlanError(
            f"batch_size={batch_rows!r}: give the rows of a batch, an integer of 1 or more, since this shard "
            "has not read any batch yet"
        )
    if steps == 0:
        return at
    batching = Batching(rows, drop_last, balance)
    if program.legs is not None:
        return _skip_in_mixture(program.legs, at, steps, program.assignment(batching, at))
    assignment = program.assignment(batching, at)
    if total is None or steps < (left := assignment.steps(total, 0)):
        row = at.row + steps * assignment.step_rows
        known = program.job.rows_known
        found = program.locate(at.epoch, row) if known else Cursor(at.epoch, row, at.window, at.window_row)
        return replace(found, groups=assignment.groups)
    whole = program.assignment(batching)
    last, steps_of_epoch = program.job.epochs, whole.steps(total, 0)
    if not steps_of_epoch:
        # no epoch has a step
        return at if last is None else Cursor(last)
    passed, steps = divmod(steps - left, steps_of_epoch)
    epoch = at.epoch + 1 + passed
    if last is not None and epoch >= last:
        return Cursor(last)
    row = steps * whole.step_rows
    found = program.locate(epoch, row) if program.job.rows_known else Cursor(epoch, row)
    return replace(found, groups=whole.groups)


def _skip_in_mixture(legs: MixtureLegs, at: Cursor, steps: int, assignment: ShardAssignment) -> Cursor:
    """The cursor some steps after another, or the mixture's end."""
    step_rows = assignment.step_rows
    while steps and legs.has_rows_at(at):
        legs.open(at, replace(assignment, start_row=at.row))
        stop = legs.stop(at.epoch)
        left = -(-(stop - at.row) // step_rows)
        taken = min(steps, left)
        at = legs.locate(at.epoch, min(at.row + taken * step_rows, stop))
        steps -= taken
    return at


def make_seed_error(seed: int | None, others: int | None) -> StateError:
    """The error for a shard whose state has another seed than the one that other shards read by."""
    return StateError(
        f"the state has seed {seed}, but other shards of the same split() are being read with seed {others}: "
        "load it into all shards before any is read, or pass it to split(..., state_dict=...)"
    )


def _allow_appended(state: State, here: State, job: Job) -> State:
    """The state as if all present files had been there, if its files are the first of them."""
    if state.row:
        raise StateError(
            f"allow_appended=True admits data at an epoch's start, but the state is at row {state.row:,} of "
            f"epoch {state.epoch}: load it without this option, read that epoch to its end, and admit the data then"
        )
    if state.files > here.files:
        return state
    before = job.source.identity(state.files)
    if (before.fingerprint, before.schema) != (state.fingerprint, state.schema):
        return state
    # sizes that follow from the files do so from those that were there
    order = order_version(cuts_row_groups=before.cuts_row_groups)
    if (order, before.block_bytes) != (state.order, state.block_bytes):
        return state
    names = ["fingerprint", "files", "rows", "sizes", "order", "block_bytes"]
    if job.cut.is_chosen:
        names.append("bytes_per_window")
    return replace(state, **{name: getattr(here, name) for name in names})


def _check_corrupt(blocks: tuple[int, ...], job: Job) -> None:
    """Check that a job can skip the blocks that a state has skipped."""
    if max(blocks) >= len(job.source.blocks.rows):
        raise make_corrupt_error(f"there is no block {max(blocks)}")
    if not job.skips_corrupt:
        names = "; ".join(address.origin for address in job.source.addresses(blocks))
        raise StateError(
            f"the state has skipped corrupt blocks ({names}), and without them rows have other positions: resume "
            "with options(on_error='skip')"
        )
