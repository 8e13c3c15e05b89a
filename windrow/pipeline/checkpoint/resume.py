"""Resuming a job from a state: checks that it is of the same stream, and where it continues."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from windrow.core.errors import StateError
from windrow.pipeline.checkpoint.cursor import Cursor
from windrow.pipeline.checkpoint.differences import describe_differences
from windrow.pipeline.checkpoint.state import State, describe_stream, make_corrupt_error, parse_state
from windrow.pipeline.plan.job import Job
from windrow.pipeline.plan.program import Program

__all__ = ["make_seed_error", "resume"]


def resume(job: Job, state_dict: Mapping[str, Any], *, allow_appended: bool = False) -> tuple[Job, Cursor]:
    """The job that continues from a state, and its cursor.

    Raises
    ------
    StateError
        If the state is corrupt, or does not belong to this job's stream.
    """
    state = parse_state(state_dict)
    job = _check_state(state, job, allow_appended=allow_appended)
    return job, _check_cursor(state.cursor, Program(job, 1, False, (0,)))


def _check_state(state: State, job: Job, *, allow_appended: bool = False) -> Job:
    """The job that continues from a state: the same, with the state's seed if its own was drawn at random.

    Raises
    ------
    StateError
        If the state has other data, windows, filter, order or seed; names what differs.
    """
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
    """A state's cursor, checked against a program's stream.

    Raises
    ------
    StateError
        If it lies past the stream's end, or its window does not hold its row.
    """
    epochs = program.job.epochs
    if epochs is not None and cursor.epoch > epochs:
        raise StateError(
            f"the state is at epoch {cursor.epoch}, but the pipeline has {epochs}: use repeat(...) for more"
        )
    if cursor.window_row > cursor.row or cursor.window > program.plan(cursor.epoch).windows:
        raise make_corrupt_error(
            f"window {cursor.window} does not hold row {cursor.row} of epoch {cursor.epoch}"
        )
    if not program.job.rows_known:
        return cursor
    found = program.locate(cursor.epoch, cursor.row)
    # where rows are counted as they are read, the end of a window is not yet the start of the next one
    before = program.locate(cursor.epoch, max(0, cursor.row - 1))
    if found.epoch == cursor.epoch and cursor not in (found, replace(before, row=cursor.row)):
        raise make_corrupt_error(f"row {cursor.row} of epoch {cursor.epoch} lies in another window")
    return replace(found, assigned=cursor.assigned)


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
    data = {name: getattr(here, name) for name in ("fingerprint", "files", "rows", "sizes")}
    return replace(state, **data)


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
