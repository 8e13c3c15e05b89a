"""Shields running tasks from the interrupt with which Ray cancels them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["ignoring_interrupts"]


@contextmanager
def ignoring_interrupts() -> Iterator[None]:
    """Ignore SIGINT, so that a task that has started runs to its end.

    Ray cancels a running task with an interrupt. During an import that leaves a broken module for all later
    tasks of this worker, for example a pandas without ``core``.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler if before is None else before)
