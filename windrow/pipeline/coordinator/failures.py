"""An exception as a value that crosses thread and process boundaries with its traceback and cause.

Within a process the exception is raised again with its own traceback. Tracebacks do not pickle,
though, and some exceptions do not either. A pickled Failure keeps what does: the kind and message
of the WindrowError, its cause if that pickles, and the traceback as text, which is shown as the
deepest cause.
"""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

from windrow.core.errors import FailedRow, TransformError, WindrowError
from windrow.core.tracebacks import cause_of, text_of, trim_traceback


class RemoteTracebackError(Exception):
    """The traceback of another process, as text."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text.rstrip()}\n"""'


class RemoteError(Exception):
    """Stands in for an exception of another process that cannot be pickled."""


@dataclass(frozen=True)
class Failure:
    """A failure, possibly of another process; small, and always picklable."""

    # the class to raise; None for any exception that is not windrow's
    kind: type[WindrowError] | None
    message: str
    # the exception of user or library code, pickled; None if it does not pickle or if there is none
    original: bytes | None
    # the same as text: "ValueError: no such unit"; empty if there is none
    original_text: str
    # the trimmed traceback of a WindrowError's cause, or else of the exception itself
    traceback_text: str
    # of a transform
    failed_row: FailedRow | None = None
    # the exception itself; None in any other process
    live: BaseException | None = field(default=None, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "live": None}

    @classmethod
    def capture(cls, exc: BaseException, dumps: Callable[[BaseException], bytes] = pickle.dumps) -> Failure:
        """Capture an exception; ``dumps`` can be a more capable pickler than pickle's."""
        if isinstance(exc, WindrowError):
            trim_traceback(exc)
        original = cause_of(exc) if isinstance(exc, WindrowError) else exc
        # the receiver raises the WindrowError itself again, and lacks only its cause
        traced = original or exc
        return cls(
            kind=type(exc) if isinstance(exc, WindrowError) else None,
            message=text_of(exc),
            original=None if original is None else _pickle(original, dumps),
            original_text="" if original is None else f"{type(original).__name__}: {text_of(original)}",
            traceback_text="".join(traceback.format_exception(traced)),
            failed_row=exc._failed_row if isinstance(exc, TransformError) else None,
            live=exc,
        )

    def rethrow(self) -> NoReturn:
        """Raise the failure here: the same class, from the original exception, from the remote traceback."""
        if self.live is not None:
            if self.kind is None:
                raise self.live
            # A new exception each time: several consumers can raise it, each in its own thread.
            raise self._make().with_traceback(self.live.__traceback__) from cause_of(self.live)
        remote = RemoteTracebackError(self.traceback_text)
        original = self._restore_original()
        if original is not None:
            original.__cause__ = remote
        if self.kind is not None:
            raise self._make() from (original or remote)
        raise original or RemoteError(self.message)

    def _make(self) -> WindrowError:
        assert self.kind is not None, "only errors of windrow are made again"
        error = self.kind(self.message)
        if isinstance(error, TransformError):
            error._failed_row = self.failed_row
        return error

    def _restore_original(self) -> BaseException | None:
        if not self.original_text:
            return None
        restored = _unpickle(self.original)
        return RemoteError(self.original_text) if restored is None else restored


def _pickle(exc: BaseException, dumps: Callable[[BaseException], bytes]) -> bytes | None:
    try:
        data = dumps(exc)
    except Exception:  # whatever a user's __reduce__ or attribute raises
        return None
    # Some exceptions pickle but do not unpickle: find out here, not at the receiver.
    return data if type(_unpickle(data)) is type(exc) else None


def _unpickle(data: bytes | None) -> BaseException | None:
    if data is None:
        return None
    try:
        exc = pickle.loads(data)
    except Exception:  # the class may be missing or require other arguments
        return None
    return exc if isinstance(exc, BaseException) else None
