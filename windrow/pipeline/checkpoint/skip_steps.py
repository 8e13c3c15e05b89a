"""Advances a cursor by a number of steps arithmetically, without reading."""

from __future__ import annotations

from windrow.core.errors import PlanError
from windrow.core.integers import as_integer
from windrow.pipeline.checkpoint.cursor import Cursor
from windrow.pipeline.plan.program import Program

__all__ = ["skip_steps"]


def skip_steps(
    program: Program, at: Cursor, count: int, *, batch_rows: int | None, drop_last: bool, total: int | None
) -> Cursor:
    """The cursor ``count`` steps after another, across epochs.

    ``total`` is the number of rows per epoch. If it is None, the cursor stays in its epoch. If
    the row counts of single blocks are unknown, the cursor keeps its window, or the first one of
    its epoch, and rows are counted from there.

    Raises
    ------
    PlanError
        If ``count`` or ``batch_rows`` is invalid.
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
    assignment = program.assignment(rows, drop_last=drop_last, start_row=at.row)
    if total is None or steps < (left := assignment.steps(total, 0)):
        row = at.row + steps * assignment.step_rows
        known = program.job.rows_known
        return program.locate(at.epoch, row) if known else Cursor(at.epoch, row, at.window, at.window_row)
    whole = program.assignment(rows, drop_last=drop_last)
    last, steps_of_epoch = program.job.epochs, whole.steps(total, 0)
    if not steps_of_epoch:
        # no epoch has a step
        return at if last is None else Cursor(last)
    passed, steps = divmod(steps - left, steps_of_epoch)
    epoch = at.epoch + 1 + passed
    if last is not None and epoch >= last:
        return Cursor(last)
    row = steps * whole.step_rows
    return program.locate(epoch, row) if program.job.rows_known else Cursor(epoch, row)
