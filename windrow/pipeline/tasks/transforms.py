"""Applies transforms to a block, or to shuffled rows: batch by batch, with errors that say where."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.arrow_support import concat_rows, empty_table
from windrow.core.chosen_rows import take_rows
from windrow.core.errors import TransformError
from windrow.core.phase_clock import phase
from windrow.core.user_functions import ConstructorError, function_error, raise_function_error
from windrow.core.variable_tensors import is_variable_tensor
from windrow.pipeline.statistics.phases import TRANSFORM_PREFIX
from windrow.pipeline.tasks.held_arrays import copy_held, count_references
from windrow.pipeline.tasks.map_batches import Call, MapBatches, Result
from windrow.pipeline.tasks.row_functions import RowError, RowFunction, function_batch
from windrow.pipeline.tasks.row_generator import RowGenerator, RowPositions, StoredRows
from windrow.pipeline.tasks.transform_results import result_to_table

_FIRST_BLOCK = StoredRows()
# groups of calls that are on their way to workers elsewhere while the results of one are awaited
_CALLS_AHEAD = 2
# input rows of functions that failed for them, which are left out and written elsewhere, with the errors
FailedRows = list[tuple[pa.Table, TransformError]]


def apply_maps(
    table: pa.Table,
    maps: Sequence[MapBatches],
    origin: str,
    positions: RowPositions = _FIRST_BLOCK,
    failed: FailedRows | None = None,
) -> pa.Table:
    """Apply map functions in turn to a block.

    No function is called for a table without rows. It is returned as it is, and its schema
    is not that of the functions' results, so callers ignore it. A `TransformError` names the function and
    ``origin`` (a description of the block); the function's exception is its ``__cause__``. With ``failed``, the
    rows of a failing batch are left out and recorded there instead.
    """
    changing = [number for number, stage in enumerate(maps) if not stage.preserves_rows]
    for number, stage in enumerate(maps):
        if table.num_rows:
            decides_rows = bool(changing) and number <= changing[-1]
            if decides_rows and number == changing[-1] and isinstance(stage.fn, RowFunction):
                decides_rows = stage.fn.draws_decide_rows
            has_all_rows = failed is None and (not changing or number <= changing[0])
            where = f"{stage.name}, {origin}"
            batches = _Batches(stage, number, decides_rows, has_all_rows, positions, where, failed)
            with phase(TRANSFORM_PREFIX + stage.name, aside=True):
                table = batches.apply(table)
    return table


@dataclass(frozen=True)
class _Batches:
    """Applies one function to the rows of a table, in batches."""

    stage: MapBatches
    number: int
    # whether it, or a later one that gets its rows, decides how many rows there are
    decides_rows: bool
    # whether no transform before it has changed which rows there are
    has_all_rows: bool
    positions: RowPositions
    where: str
    failed: FailedRows | None

    def apply(self, table: pa.Table) -> pa.Table:
        """Apply the function to each batch, and return the results as one table."""
        results: list[pa.Table] = []
        empty: pa.Table | None = None
        for result in self._results(table, self.stage.batch_size or table.num_rows):
            if not result.num_rows:
                # the type of an empty list means nothing
                empty = result
                continue
            if results:
                check_schema(results[0].schema, result.schema, self.where)
            results.append(result)
        if results:
            return concat_rows(results)
        return table.slice(0, 0) if empty is None else empty_table(empty.schema)

    def _results(self, table: pa.Table, size: int) -> Iterator[pa.Table]:
        """The results of batches of some rows, in order; workers elsewhere get the next ones while some run."""
        workers, starts = self.stage.workers, range(0, table.num_rows, size)
        batches = ((start, table.slice(start, size)) for start in starts)
        if workers is None:
            for start, rows in batches:
                yield from self._finish(start, rows, partial(self._run, self._call(start, rows)))
            return
        begun: deque[list[tuple[int, pa.Table, Callable[[], Result]]]] = deque()
        # as many are on their way as there would be one by one
        most = max(1, len(starts) // (_CALLS_AHEAD + 1))
        while some := list(islice(batches, min(most, workers.calls_together))):
            waits = workers.start([self._call(start, rows) for start, rows in some])
            begun.append([(start, rows, wait) for (start, rows), wait in zip(some, waits, strict=True)])
            if len(begun) > _CALLS_AHEAD:
                yield from self._finish_all(begun.popleft())
        while begun:
            yield from self._finish_all(begun.popleft())

    def _call(self, start: int, rows: pa.Table) -> Call:
        return Call(rows, self.where, self._generator(start, rows.num_rows), self.failed is not None)

    def _finish_all(self, begun: list[tuple[int, pa.Table, Callable[[], Result]]]) -> Iterator[pa.Table]:
        for start, rows, wait in begun:
            yield from self._finish(start, rows, wait)

    def _finish(self, start: int, rows: pa.Table, wait: Callable[[], Result]) -> Iterator[pa.Table]:
        """The result of a batch, unless the function failed for all of it and ``failed`` takes its rows."""
        try:
            result, errors = wait()
        except TransformError as error:
            if self.failed is None or isinstance(error, ConstructorError):
                if error._failed_row is not None:
                    at = start + error._failed_row.row
                    error._failed_row = self.positions.find(at) if self.has_all_rows else None
                raise
            self.failed.append((rows, error))
            return
        if self.failed is not None:
            for row, of_row in errors:
                self.failed.append((rows.slice(row, 1), of_row))
        yield result

    def _run(self, call: Call) -> Result:
        with self.stage.local_workers.instance() as fn:
            return call_function(self.stage, fn, call)

    def _generator(self, start: int, rows: int) -> RowGenerator | None:
        if not self.stage.rng:
            return None
        return self.positions.generator(self.number, start, rows, changes_rows=self.decides_rows)


def as_one_batch(table: pa.Table, origin: str) -> pa.RecordBatch:
    """Return the rows that transforms after the shuffle made (at least one row) as one batch."""
    batches = table.combine_chunks().to_batches()
    if len(batches) > 1:
        # Arrow does not concatenate strings beyond 2 GiB, since their offsets have 32 bits
        raise TransformError(
            f"map_batches after the shuffle, {origin}: the {table.num_rows:,} rows returned are too large for "
            "one Arrow array: return large_string or large_binary columns, or smaller values"
        )
    return batches[0]


def join_chunks(table: pa.Table) -> pa.RecordBatch:
    """Return the rows that a function gets as one batch."""
    columns = [
        column.chunk(0) if column.num_chunks == 1 else column.combine_chunks() for column in table.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=table.schema)


def call_function(stage: MapBatches, fn: Callable[..., Any], call: Call) -> Result:
    """Call a transform's function on batches (an instance, if it is a class)."""
    batch, rows = join_chunks(call.rows), np.arange(call.rows.num_rows)
    try:
        return _call(stage, fn, batch, _restarted(call.rng, rows), call.where), []
    except TransformError as failure:
        if not (call.skips_failed and isinstance(fn, RowFunction)):
            raise
        error = failure
    failing = fn.failing(call.rows, *stage.fn_args, **_kwargs(stage, _restarted(call.rng, rows)))
    if not failing:
        raise error
    kept = np.setdiff1d(rows, [one.row for one in failing])
    names, nulls = call.rows.column_names, _find_nulls(batch)
    errors = [(one.row, function_error(one.error, call.where, names, nulls=nulls)) for one in failing]
    if not len(kept):
        return call.rows.slice(0, 0), errors
    return _call(stage, fn, take_rows(batch, kept), _restarted(call.rng, kept), call.where), errors


def _restarted(rng: RowGenerator | None, rows: NDArray[np.int64]) -> RowGenerator | None:
    """A generator that has drawn nothing yet, for some rows of the batch."""
    return None if rng is None else rng.take(rows)


def _call(
    stage: MapBatches, fn: Callable[..., Any], batch: pa.RecordBatch, rng: RowGenerator | None, where: str
) -> pa.Table:
    user_batch = function_batch(batch, stage.batch_format)
    # a copy, since the function can put other arrays into its dict
    arrays = dict(user_batch) if stage.batch_format == "numpy" else None
    try:
        result = fn(user_batch, *stage.fn_args, **_kwargs(stage, rng))
    except RowError as exc:
        raise_function_error(exc.error, where, batch.schema.names, row=exc.row, nulls=_find_nulls(batch))
    except BaseException as exc:
        raise_function_error(exc, where, batch.schema.names, nulls=_find_nulls(batch))
    try:
        if isinstance(result, Mapping):
            counted = count_references(result)
            result = copy_held(result, counted, user_batch, arrays or {})
        table = result_to_table(result, batch, arrays)
    except TransformError as exc:
        raise TransformError(f"{where}: {exc}") from exc.__cause__
    if stage.preserves_rows and table.num_rows != batch.num_rows:
        raise TransformError(
            f"{where}: returned {table.num_rows} rows for {batch.num_rows}; return one row for each, "
            "or pass preserves_rows=False before the shuffle"
        )
    return table


def _find_nulls(batch: pa.RecordBatch) -> list[str]:
    return [name for name, column in zip(batch.schema.names, batch.columns, strict=True) if column.null_count]


def _kwargs(stage: MapBatches, rng: RowGenerator | None) -> dict[str, Any]:
    return dict(stage.fn_kwargs) if rng is None else {**stage.fn_kwargs, "rng": rng}


def check_schema(expected: pa.Schema, got: pa.Schema, origin: str) -> None:
    """Raise TransformError if ``got`` has other columns or types, or another column order."""
    # names and types take a Python object for each column
    if got.equals(expected) or (got.names == expected.names and got.types == expected.types):
        return
    changes = [
        *(f"{name!r} is missing" for name in expected.names if name not in got.names),
        *(f"{name!r} is new" for name in got.names if name not in expected.names),
        *(
            f"{name!r} is {got.field(name).type} and was {expected.field(name).type}"
            for name in expected.names
            if name in got.names and got.field(name).type != expected.field(name).type
        ),
    ] or [f"the order is {got.names} and was {expected.names}"]
    raise TransformError(
        f"{origin}: the columns differ from those of the rows before: {', '.join(changes)}. Return the same "
        f"columns and types for every batch: cast with astype, or return pa.array(values, type=...){_tensor_fix(got)}"
    )


def _tensor_fix(got: pa.Schema) -> str:
    """The fix for tensors whose shapes are equal in some batches only."""
    tensors = [
        kind for kind in got.types if is_variable_tensor(kind) or isinstance(kind, pa.FixedShapeTensorType)
    ]
    return ", or windrow.VariableShapeTensorType(...).make_column(arrays)" if tensors else ""
