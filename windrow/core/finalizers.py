"""Runs the work of finalizers in another thread, so that it cannot deadlock on a held lock."""

from __future__ import annotations

import _thread
import atexit
import sys
import threading
import time
from collections.abc import Callable

from windrow.core.system.processes import call_in_forked_children

# what closes threads waits up to 10 s for each of them
_EXIT_SECONDS = 20.0
# a lock for each call that has not ended, which it holds; changed by single operations alone
_UNDER_WAY: set[_thread.LockType] = set()


def in_background(call: Callable[[], object]) -> None:
    """Make a call in another thread, for use in finalizers; the interpreter ends after it.

    The garbage collector runs finalizers in any thread at nearly any moment, so possibly in a thread that
    holds a lock or is in the middle of changing the state that the call would change.
    """
    if threading.main_thread().is_alive():
        held = _thread.allocate_lock()
        held.acquire()
        _UNDER_WAY.add(held)
        try:
            # threading.Thread.start() takes locks itself, which the interrupted code may hold
            _thread.start_new_thread(_run, ([call], held))
            return
        except RuntimeError:
            # the interpreter cannot start more threads
            _UNDER_WAY.discard(held)
    # at exit, new threads are not waited for, and finalizers are called one after the other
    call()


def _run(calls: list[Callable[[], object]], held: _thread.LockType) -> None:
    try:
        calls[0]()
    except BaseException:
        # printed before the end of the interpreter, which would cut it off
        threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), None)))
    finally:
        # what only the call holds, such as prefetched batches, is freed while the end is still waited for
        calls.clear()
        _UNDER_WAY.discard(held)
        held.release()


@atexit.register
def _wait_at_exit() -> None:
    """Let calls end that close what a loop has left just before: a thread that decodes when Python ends, aborts it."""
    until = time.monotonic() + _EXIT_SECONDS
    for held in list(_UNDER_WAY):
        held.acquire(timeout=max(0.0, until - time.monotonic()))


# a forked process has none of these threads
call_in_forked_children(_UNDER_WAY.clear)
