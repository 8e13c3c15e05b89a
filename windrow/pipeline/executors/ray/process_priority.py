"""What a task changes in its worker process: it yields CPU to trainers.

Tasks prepare later windows, so their CPU priority is below that of trainers.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from windrow.core.system.processes import HAS_THREAD_PRIORITY, set_thread_niceness, thread_niceness

# Ray starts its workers at niceness 15, and 19 is the maximum: a trainer then gets over two thirds of a
# core that both contend for.
_NICE_INCREMENT, _MAX_NICE = 4, 19


@contextmanager
def yielding_cpu() -> Iterator[None]:
    """Raise this thread's niceness, where it can be restored afterwards.

    Without the privilege to lower niceness nothing is done, since the process may run tasks of other users
    later. Threads that a transform or a library starts inside inherit the raised niceness, and keep it.
    """
    if not HAS_THREAD_PRIORITY or not _can_restore_priority():
        yield
        return
    thread = threading.get_native_id()
    before = thread_niceness(thread)
    try:
        set_thread_niceness(thread, min(before + _NICE_INCREMENT, _MAX_NICE))
        yield
    finally:
        set_thread_niceness(thread, before)


@cache
def _can_restore_priority() -> bool:
    """Whether this process has the privilege to lower a thread's niceness; tries it and restores the value."""
    thread = threading.get_native_id()
    try:
        before = thread_niceness(thread)
        set_thread_niceness(thread, before - 1)
        set_thread_niceness(thread, before)
    except OSError:
        # not permitted, or not implemented in some sandbox
        return False
    return True
