"""`MapBatches`, a user's map function with its options, and applying such functions to a block."""

from __future__ import annotations

import functools
import inspect
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import pyarrow as pa

from windrow.core.empty_tables import empty_table
from windrow.core.errors import PlanError, TransformError
from windrow.core.integers import as_integer
from windrow.pipeline.delivery.batch_formats import BatchFormat, check_format, convert
from windrow.pipeline.tasks.transform_results import result_to_table

__all__ = [
    "MapBatches",
    "apply_maps",
    "as_one_batch",
    "check_schema",
    "function_name",
    "raise_function_error",
]


@dataclass(frozen=True)
class MapBatches:
    """A function to call on batches as ``fn(batch, *fn_args, **fn_kwargs)``, as `map_batches` documents it."""

    fn: Callable[..., Any]
    batch_format: BatchFormat = "numpy"
    # rows of a batch; the last one of a block can have fewer; None: a block is one batch
    batch_size: int | None = None
    fn_args: tuple[Any, ...] = field(default=(), hash=False)
    fn_kwargs: Mapping[str, Any] = field(default_factory=dict, hash=False)
    # whether output row i comes from input row i
    preserves_rows: bool = True

    def __post_init__(self) -> None:
        _check_function(self.fn)
        check_format(self.batch_format)
        size = as_integer(self.batch_size)
        if self.batch_size is not None and (size is None or size < 1):
            raise PlanError(
                f"batch_size={self.batch_size!r} must be an integer of 1 or more, or None for whole blocks"
            )
        if not isinstance(self.preserves_rows, bool):
            raise PlanError(f"preserves_rows={self.preserves_rows!r} must be True or False")
        if isinstance(self.fn_args, str) or not isinstance(self.fn_args, Sequence):
            raise PlanError(f"fn_args={self.fn_args!r} must be a tuple of arguments")
        if not isinstance(self.fn_kwargs, Mapping) or not all(isinstance(k, str) for k in self.fn_kwargs):
            raise PlanError(f"fn_kwargs={self.fn_kwargs!r} must be a dict of arguments by name")
        # copies, so that later changes of the caller's objects have no effect
        object.__setattr__(self, "batch_size", size)
        object.__setattr__(self, "fn_args", tuple(self.fn_args))
        object.__setattr__(self, "fn_kwargs", dict(self.fn_kwargs))

    @property
    def name(self) -> str:
        """The function's name in errors."""
        return f"map_batches({function_name(self.fn)})"


def function_name(fn: Callable[..., Any]) -> str:
    """The name of a function, without `functools.partial` around it."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return str(getattr(fn, "__qualname__", type(fn).__qualname__))


def _check_function(fn: object) -> None:
    if isinstance(fn, type):
        raise PlanError(f"map_batches got the class {fn.__qualname__}; give a function or an instance of it")
    if not callable(fn):
        raise PlanError(f"map_batches got {fn!r}, which cannot be called; give a function")
    underlying = fn if inspect.isroutine(fn) else getattr(fn, "func", None) or type(fn).__call__
    if any(
        is_unsupported(underlying)
        for is_unsupported in (inspect.isgeneratorfunction, inspect.iscoroutinefunction)
    ):
        raise PlanError(
            f"map_batches got {function_name(fn)}, which yields or awaits; "
            "give a function that returns a batch"
        )


def apply_maps(table: pa.Table, maps: Sequence[MapBatches], origin: str) -> pa.Table:
    """Apply map functions in turn to a block.

    No function is called for a table without rows. It is returned as it is, and its schema
    is not that of the functions' results, so callers ignore it. A `TransformError` names the function and
    ``origin`` (a description of the block); the function's exception is its ``__cause__``.
    """
    for stage in maps:
        if table.num_rows:
            table = _apply(table, stage, f"{stage.name}, {origin}")
    return table


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


def _apply(table: pa.Table, stage: MapBatches, where: str) -> pa.Table:
    size = stage.batch_size or table.num_rows
    results: list[pa.Table] = []
    for start in range(0, table.num_rows, size):
        result = _call(stage, _as_batch(table.slice(start, size)), where)
        if not result.num_rows:
            continue  # the type of an empty list means nothing
        if results:
            check_schema(results[0].schema, result.schema, where)
        results.append(result)
    return pa.concat_tables(results) if results else empty_table(result.schema)


def _as_batch(table: pa.Table) -> pa.RecordBatch:
    columns = [
        column.chunk(0) if column.num_chunks == 1 else column.combine_chunks() for column in table.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=table.schema)


def _call(stage: MapBatches, batch: pa.RecordBatch, where: str) -> pa.Table:
    user_batch = convert(batch, stage.batch_format, writable=False)
    # a copy, since the function can put other arrays into its dict
    arrays = dict(user_batch) if stage.batch_format == "numpy" else None
    try:
        result = stage.fn(user_batch, *stage.fn_args, **stage.fn_kwargs)
    except BaseException as exc:
        raise_function_error(exc, where)
    try:
        table = result_to_table(result, batch, arrays)
    except TransformError as exc:
        raise TransformError(f"{where}: {exc}") from exc.__cause__
    if stage.preserves_rows and table.num_rows != batch.num_rows:
        raise TransformError(
            f"{where}: returned {table.num_rows} rows for {batch.num_rows}; return one row for each, "
            "or pass preserves_rows=False before the shuffle"
        )
    return table


def raise_function_error(exc: BaseException, where: str) -> NoReturn:
    """Raise the exception of a user's function as a TransformError.

    What a signal handler raised is raised unchanged: KeyboardInterrupt on Ctrl-C, or SystemExit when the
    job is terminated.
    """
    if not isinstance(exc, Exception) and _can_be_interrupted():
        raise exc
    text = f"{type(exc).__name__}: {exc}" if str(exc) else type(exc).__name__
    raise TransformError(f"{where}: {text}{_advice(exc)}") from exc


def _can_be_interrupted() -> bool:
    """Whether signal handlers can run here: not in other threads, nor in Ray tasks, which ignore SIGINT."""
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN


def _advice(exc: BaseException) -> str:
    if isinstance(exc, (SystemExit, KeyboardInterrupt)):
        return ". A function cannot end the process: raise another exception, such as ValueError"
    if isinstance(exc, ValueError) and "read-only" in str(exc):
        return (
            ". The arrays that a function gets are read-only: assign a new array, "
            "as in batch['x'] = batch['x'] + 1"
        )
    return ""


def check_schema(expected: pa.Schema, got: pa.Schema, origin: str) -> None:
    """Raise TransformError if ``got`` has other columns or types, or another column order."""
    if got.names == expected.names and got.types == expected.types:
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
        "columns and types for every batch: cast with astype, or return pa.array(values, type=...)"
    )
