"""Tasks that end by themselves, also where Ray cancels them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["ignoring_interrupts"]


@contextmanager
def ignoring_interrupts() -> Iterator[None]:
    """Finish what was begun.

    Ray cancels a running task by an interrupt. In the middle of an import that leaves a module that
    is broken for whatever runs in this worker later; pandas then has no ``core``.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler if before is None else before)
