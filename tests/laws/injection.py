"""Injects exceptions into calls between modules, at every call site found by tracing, one at a time."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

__all__ = ["InjectedError", "Site", "injecting", "names_injected", "recording"]

# the caller's module and function, and the called function
Site = tuple[str, str, str]


class InjectedError(Exception):
    """The injected exception."""


class _Tracer:
    """Sees each call of a function under ``inside`` out of another file, made by one of the ``callers``.

    Parameters
    ----------
    callers
        The files whose calls count; with ``:name`` behind the file, those of its functions of that name.
    inside
        Folders and files whose functions count as callees.
    fails
        The call that raises: a site, and the number of earlier calls there; None: no call raises.
    """

    def __init__(
        self, callers: Collection[str], inside: Collection[Path], fails: tuple[Site, int] | None = None
    ) -> None:
        self._callers = frozenset(callers)
        self._inside = tuple(map(str, inside))
        self._fails = fails
        self._lock = threading.Lock()
        self.seen: Counter[Site] = Counter()
        self.fired = False

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        back, code = frame.f_back, frame.f_code
        if event != "call" or back is None or not self._counts(back.f_code):
            return
        # finalizers and generators closed by the garbage collector have no real caller
        if (
            code.co_name in ("__del__", "<genexpr>")
            or code.co_filename == back.f_code.co_filename
            or not code.co_filename.startswith(self._inside)
        ):
            return
        called = f"{Path(code.co_filename).stem}.{code.co_name}"
        site = (Path(back.f_code.co_filename).stem, back.f_code.co_name, called)
        with self._lock:
            number = self.seen[site]
            self.seen[site] += 1
            if self._fails != (site, number):
                return
            self.fired = True
        raise InjectedError(f"injected into {' '.join(site)}")

    def _counts(self, caller: CodeType) -> bool:
        file = caller.co_filename
        return file in self._callers or f"{file}:{caller.co_name}" in self._callers


@contextmanager
def _tracing(tracer: _Tracer) -> Iterator[None]:
    before = sys.gettrace()
    threading.settrace(tracer)
    sys.settrace(tracer)
    try:
        yield
    finally:
        threading.settrace(before)
        sys.settrace(before)


@contextmanager
def recording(callers: Collection[str], inside: Collection[Path]) -> Iterator[Counter[Site]]:
    """Count the calls by site that threads started in this context make."""
    tracer = _Tracer(callers, inside)
    with _tracing(tracer):
        yield tracer.seen


@contextmanager
def injecting(
    callers: Collection[str], inside: Collection[Path], site: Site, number: int
) -> Iterator[_Tracer]:
    """Make the call at a site after ``number`` earlier ones raise an `InjectedError`, once."""
    tracer = _Tracer(callers, inside, (site, number))
    with _tracing(tracer):
        yield tracer


def names_injected(error: BaseException | None) -> bool:
    """Whether an error is an injected one or names it as its cause."""
    while error is not None:
        if isinstance(error, InjectedError) or "InjectedError" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False
