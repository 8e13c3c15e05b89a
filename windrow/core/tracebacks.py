"""Trims windrow's internal frames from tracebacks, leaving the user's call and the frame that raised.

Dozens of internal frames lie between a user's loop and the thread that reads a file, and they add nothing to
the message. All frames of the user's functions and of libraries stay.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import TracebackType
from typing import ParamSpec, TypeVar

from windrow.core.errors import WindrowError

P = ParamSpec("P")
T = TypeVar("T")
E = TypeVar("E", bound=BaseException)

# Only these are trimmed: any other exception is a bug in windrow and keeps every frame.
USER_ERRORS = (WindrowError, KeyboardInterrupt, SystemExit)

_OURS = "windrow"
# modules whose frames lie between two of windrow's, where one waits for the other or wraps its errors
_BETWEEN = {"concurrent.futures._base", "concurrent.futures.thread", "contextlib", "threading"}


def trims_traceback(call: Callable[P, T]) -> Callable[P, T]:
    """Decorate a public entry point, or what it calls directly, to trim the tracebacks of its errors."""

    @wraps(call)
    def trimming(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return call(*args, **kwargs)
        except USER_ERRORS as error:
            raise trim_traceback(error) from cause_of(error)

    return trimming


def trim_traceback(error: E) -> E:
    """Drop the leading windrow frames but the last, which raised or called foreign code; also for the causes."""
    link: BaseException | None = error
    seen = set()
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        link.__traceback__ = _trim(link.__traceback__)
        link = cause_of(link)
    return error


def cause_of(error: BaseException) -> BaseException | None:
    """The explicit cause or implicit context of an error; None if it was raised ``from None``."""
    return error.__cause__ if error.__suppress_context__ else error.__context__


def text_of(error: BaseException) -> str:
    """The message of an error of a user or a library, whose own method can fail."""
    try:
        return str(error)
    except Exception:
        return ""


def describe_error(error: BaseException) -> str:
    """The type of an error, and its message if there is one."""
    text = text_of(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def is_internal(module: str) -> bool:
    """Whether a module is windrow's, or one whose frames lie between two of windrow's."""
    return module.partition(".")[0] == _OURS or module in _BETWEEN


def _trim(trace: TracebackType | None) -> TracebackType | None:
    kept = trace
    while trace is not None:
        module = str(trace.tb_frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] == _OURS:
            kept = trace
        elif module not in _BETWEEN:
            break
        trace = trace.tb_next
    return kept
