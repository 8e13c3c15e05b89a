"""Work that gives way: what prepares later windows leaves the cores to trainers that want them now."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

__all__ = ["yielding_cpu"]

# The last step there is, from the 15 that Ray gives its workers: trainers then get over two thirds
# of a core that both want.
_NICE_INCREMENT, _MAX_NICE = 4, 19


@contextmanager
def yielding_cpu() -> Iterator[None]:
    """Let this thread have a core after those of trainers, where that can be undone.

    Some may not take back what they have given up; there nothing is done, for the
    process may run other people's tasks later. Threads that are begun meanwhile, by a
    transform or a library, stay as nice as this one is then.
    """
    if sys.platform != "linux" or not _can_restore_priority():
        yield
        return
    # a thread has a niceness of its own there, whatever POSIX says
    thread = threading.get_native_id()
    before = os.getpriority(os.PRIO_PROCESS, thread)
    try:
        os.setpriority(os.PRIO_PROCESS, thread, min(before + _NICE_INCREMENT, _MAX_NICE))
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, thread, before)


@cache
def _can_restore_priority() -> bool:
    """Whether this process may make a thread less nice than it is, which is tried and undone."""
    thread = threading.get_native_id()
    try:
        before = os.getpriority(os.PRIO_PROCESS, thread)
        os.setpriority(os.PRIO_PROCESS, thread, before - 1)
        os.setpriority(os.PRIO_PROCESS, thread, before)
    except OSError:
        # not allowed, or not known in some sandbox
        return False
    return True
