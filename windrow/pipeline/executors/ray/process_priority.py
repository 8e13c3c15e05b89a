"""Lowers the CPU priority of tasks, which prepare later windows, below that of trainers."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

__all__ = ["yielding_cpu"]

# Ray starts its workers at niceness 15, and 19 is the maximum: a trainer then gets over two thirds of a
# core that both contend for.
_NICE_INCREMENT, _MAX_NICE = 4, 19


@contextmanager
def yielding_cpu() -> Iterator[None]:
    """Raise this thread's niceness, where it can be restored afterwards.

    Without the privilege to lower niceness nothing is done, since the process may run tasks of other users
    later. Threads that a transform or a library starts inside inherit the raised niceness, and keep it.
    """
    if sys.platform != "linux" or not _can_restore_priority():
        yield
        return
    # on Linux niceness is per thread, contrary to POSIX
    thread = threading.get_native_id()
    before = os.getpriority(os.PRIO_PROCESS, thread)
    try:
        os.setpriority(os.PRIO_PROCESS, thread, min(before + _NICE_INCREMENT, _MAX_NICE))
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, thread, before)


@cache
def _can_restore_priority() -> bool:
    """Whether this process has the privilege to lower a thread's niceness; tries it and restores the value."""
    thread = threading.get_native_id()
    try:
        before = os.getpriority(os.PRIO_PROCESS, thread)
        os.setpriority(os.PRIO_PROCESS, thread, before - 1)
        os.setpriority(os.PRIO_PROCESS, thread, before)
    except OSError:
        # not permitted, or not implemented in some sandbox
        return False
    return True
