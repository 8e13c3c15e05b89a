"""Runs the work of finalizers in another thread, so that it cannot deadlock on a held lock."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable


def in_background(call: Callable[[], object]) -> None:
    """Make a call in another thread, for use in finalizers.

    The garbage collector runs finalizers in any thread at nearly any moment, so possibly in a thread that
    holds a lock or is in the middle of changing the state that the call would change.
    """
    if threading.main_thread().is_alive():
        try:
            # threading.Thread.start() takes locks itself, which the interrupted code may hold
            _thread.start_new_thread(call, ())
            return
        except RuntimeError:
            pass  # the interpreter cannot start more threads
    # at exit, new threads are not waited for, and finalizers are called one after the other
    call()
