"""What finalizers do, done where no lock can be in the way."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable

__all__ = ["in_background"]


def in_background(call: Callable[[], object]) -> None:
    """Have another thread make a call: the way for a finalizer to do anything at all.

    The garbage collector runs finalizers in any thread at nearly any moment, so also
    in one that holds a lock or is in the middle of changing what the call would change.
    """
    if threading.main_thread().is_alive():
        try:
            # threading.Thread takes locks itself to start, which the same moment may hold
            _thread.start_new_thread(call, ())
            return
        except RuntimeError:
            pass  # no more threads may start
    # at the exit nobody waits for a thread, and finalizers are called one by one
    call()
