"""An exception as a value that crosses thread and process borders without losing its story.

Within a process it is raised again with the traceback that it had. A traceback does
not pickle, though, and an exception may not either. A Failure that was pickled keeps
what does: the kind and message of the WindrowError, its cause where that pickles, and
the traceback as text, which is shown as the deepest cause.
"""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

from windrow.core.errors import WindrowError
from windrow.core.tracebacks import cause_of, trim_traceback

__all__ = ["Failure", "RemoteError", "RemoteTracebackError"]


class RemoteTracebackError(Exception):
    """The traceback of another process, as text."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text.rstrip()}\n"""'


class RemoteError(Exception):
    """Stands for an exception of another process that cannot be brought here."""


@dataclass(frozen=True)
class Failure:
    """What went wrong in another process; small, and always picklable.

    Attributes
    ----------
    kind
        The WindrowError class to raise; None where the exception was none of ours.
    message
        Its message.
    original
        The exception of user or library code, pickled; None where that is impossible
        or where there is none.
    original_text
        The same in words: ``"ValueError: no such unit"``; empty where there is none.
    traceback_text
        The traceback, trimmed, of what a WindrowError came from, or else of the exception itself.
    live
        The exception itself; None in another process than its own.
    """

    kind: type[WindrowError] | None
    message: str
    original: bytes | None
    original_text: str
    traceback_text: str
    live: BaseException | None = field(default=None, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "live": None}

    @classmethod
    def capture(cls, exc: BaseException, dumps: Callable[[BaseException], bytes] = pickle.dumps) -> Failure:
        """Take down an exception; ``dumps`` may be a more able pickler than pickle's."""
        if isinstance(exc, WindrowError):
            trim_traceback(exc)
        original = cause_of(exc) if isinstance(exc, WindrowError) else exc
        # a WindrowError is raised again where it is received, so what it came from is all that is missing there
        traced = original or exc
        return cls(
            kind=type(exc) if isinstance(exc, WindrowError) else None,
            message=str(exc),
            original=None if original is None else _pickle(original, dumps),
            original_text="" if original is None else f"{type(original).__name__}: {original}",
            traceback_text="".join(traceback.format_exception(traced)),
            live=exc,
        )

    def rethrow(self) -> NoReturn:
        """Raise it here: the same class from the original, from the remote traceback."""
        if self.live is not None:
            if self.kind is None:
                raise self.live
            # Anew each time: several consumers may raise it, each in its own thread.
            raise self.kind(self.message).with_traceback(self.live.__traceback__) from cause_of(self.live)
        remote = RemoteTracebackError(self.traceback_text)
        original = self._restore_original()
        if original is not None:
            original.__cause__ = remote
        if self.kind is not None:
            raise self.kind(self.message) from (original or remote)
        raise original or RemoteError(self.message)

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
    # Some exceptions pickle but cannot be built again: better known here than there.
    return data if type(_unpickle(data)) is type(exc) else None


def _unpickle(data: bytes | None) -> BaseException | None:
    if data is None:
        return None
    try:
        exc = pickle.loads(data)
    except Exception:  # the class may be missing or demand other arguments
        return None
    return exc if isinstance(exc, BaseException) else None
