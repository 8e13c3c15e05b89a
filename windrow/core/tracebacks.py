"""Tracebacks that a user can read: where an error left the user's code, where it was raised, and nothing between.

A frame of windrow tells a user nothing that the message does not, and there are dozens of them between a
loop and a thread that reads a file. Frames of the user's own functions, and of libraries, all stay.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import TracebackType
from typing import ParamSpec, TypeVar

from windrow.core.errors import WindrowError

__all__ = ["USER_ERRORS", "cause_of", "ends_traceback", "trim_traceback"]

P = ParamSpec("P")
T = TypeVar("T")
E = TypeVar("E", bound=BaseException)

# What users are shown: other exceptions are faults of ours, and keep every frame.
USER_ERRORS = (WindrowError, KeyboardInterrupt, SystemExit)

_OURS = "windrow"
# what lies between two of our frames where one waits for the other, or maps its errors
_BETWEEN = {"concurrent.futures._base", "concurrent.futures.thread", "contextlib", "threading"}


def ends_traceback(call: Callable[P, T]) -> Callable[P, T]:
    """Decorate what users call, or what that calls at once: its errors are raised with their tracebacks trimmed."""

    @wraps(call)
    def trimming(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return call(*args, **kwargs)
        except USER_ERRORS as error:
            raise trim_traceback(error) from cause_of(error)

    return trimming


def trim_traceback(error: E) -> E:
    """Leave out our frames above the one that raised an error, or called what raised it; of its causes too."""
    link: BaseException | None = error
    seen = set()
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        link.__traceback__ = _trim(link.__traceback__)
        link = cause_of(link)
    return error


def cause_of(error: BaseException) -> BaseException | None:
    """What an error came from, as Python tells it: nothing where it was raised ``from None``."""
    return error.__cause__ if error.__suppress_context__ else error.__context__


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
