"""Functions that users give: which can be called, what messages call them, and the errors that they raise."""

from __future__ import annotations

import difflib
import functools
import inspect
import signal
import threading
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from windrow.core.errors import FailedRow, PlanError, TransformError
from windrow.core.tracebacks import describe_error

# where other libraries take an expression as text
_EXAMPLES = {
    "filter": ", as in filter(lambda row: row['x'] > 0), or an expression, as pyarrow.compute.field('x') > 0"
}


class ConstructorError(TransformError):
    """A function of the user could not be loaded, or its object made: no row is the reason, so none is put aside."""


def function_name(fn: Callable[..., Any]) -> str:
    """The name of a function, without `functools.partial` around it."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return str(getattr(fn, "__qualname__", type(fn).__qualname__))


def check_function(fn: object, caller: str) -> None:
    """Raise PlanError unless ``fn`` is a function, a class of callable objects, or such an object."""
    if isinstance(fn, type):
        # of the objects: a class itself can always be called
        underlying: Any = next(
            (base.__dict__["__call__"] for base in fn.__mro__ if "__call__" in base.__dict__), None
        )
        if underlying is None:
            raise PlanError(
                f"{caller} got the class {fn.__qualname__}, whose objects have no method __call__"
            )
    elif not callable(fn):
        raise PlanError(
            f"{caller} got {fn!r}, which cannot be called; give a function{_EXAMPLES.get(caller, '')}"
        )
    else:
        underlying = fn if inspect.isroutine(fn) else getattr(fn, "func", None) or type(fn).__call__
    if any(
        is_unsupported(underlying)
        for is_unsupported in (inspect.isgeneratorfunction, inspect.iscoroutinefunction)
    ):
        raise PlanError(
            f"{caller} got {function_name(fn)}, which yields or awaits; give a function that returns its result"
        )


def raise_function_error(
    exc: BaseException,
    where: str,
    columns: Sequence[str] = (),
    kind: type[TransformError] = TransformError,
    row: int | None = None,
    nulls: Sequence[str] = (),
) -> NoReturn:
    """Raise the exception of a user's function, which got these columns, as a TransformError; for a row of its batch.

    ``nulls`` names those of the columns that have nulls.

    What a signal handler raised is raised unchanged: KeyboardInterrupt on Ctrl-C, or SystemExit when the
    job is terminated.
    """
    raise_interrupt(exc)
    where = where if row is None else f"{where}, row {row} of its batch"
    error = function_error(exc, where, columns, kind, nulls)
    error._failed_row = None if row is None else FailedRow(row)
    raise error from exc


def function_error(
    exc: BaseException,
    where: str,
    columns: Sequence[str] = (),
    kind: type[TransformError] = TransformError,
    nulls: Sequence[str] = (),
) -> TransformError:
    """The TransformError for the exception of a user's function, which got these columns; arguments as above."""
    return kind(f"{where}: {describe_error(exc)}{_advice(exc, columns, nulls)}")


def raise_interrupt(exc: BaseException) -> None:
    """Raise what a signal handler may have raised in a user's function again; any other exception is the function's."""
    if not isinstance(exc, Exception) and _can_be_interrupted():
        raise exc


def _can_be_interrupted() -> bool:
    """Whether signal handlers can run here: not in other threads, nor in Ray tasks, which ignore SIGINT."""
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN


def _advice(exc: BaseException, columns: Sequence[str], nulls: Sequence[str]) -> str:
    if isinstance(exc, (SystemExit, KeyboardInterrupt)):
        return ". A function cannot end the process: raise another exception, such as ValueError"
    if isinstance(exc, ValueError) and "read-only" in str(exc):
        return (
            ". The arrays that a function gets are read-only: assign a new array, "
            "as in batch['x'] = batch['x'] + 1"
        )
    if isinstance(exc, KeyError) and exc.args and isinstance(exc.args[0], str) and exc.args[0] not in columns:
        # the key can also be one of the function's own dicts, so only a column of a similar name is suggested
        by_casefold = {name.casefold(): name for name in columns}
        near = difflib.get_close_matches(exc.args[0].casefold(), by_casefold, n=1)
        return f". Did you mean the column {by_casefold[near[0]]!r}?" if near else ""
    if nulls and isinstance(exc, (TypeError, AttributeError)) and "NoneType" in str(exc):
        return (
            f". Nulls, as in column {nulls[0]!r}, are None in a function: fill them before it, as in "
            "add_column('x', pc.coalesce(pc.field('x'), 0)), or leave out such rows: "
            "filter(pc.field('x').is_valid())"
        )
    # Pillow, which need not be installed
    if type(exc).__name__.startswith("DecompressionBomb"):
        return (
            ". The image is too large for Pillow: scale it down, exclude it, or raise PIL.Image.MAX_IMAGE_PIXELS in "
            "the function, if you trust the data"
        )
    return ""
