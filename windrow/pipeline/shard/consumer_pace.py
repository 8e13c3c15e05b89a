"""Whether a consumer works or waits, which decides what is done first for it, and with how many cores."""

from __future__ import annotations

import threading
import time

__all__ = ["CoreTime", "Pace"]

# of about eight runs; a wait counts as so many times the work at most
_PACE_WEIGHT, _MAX_WAIT_RATIO = 1 / 8, 2
_COMPUTES_SHARE = 0.9


class Pace:
    """Whether the consumer mostly works, rather than waits.

    To serve one first that takes all that it can get only puts off the next window, which does
    not matter in the first one: the sooner it has been passed, the sooner there are two in turn.
    """

    def __init__(self) -> None:
        self._has_started = False
        self._worked = self._waited = self._computed = 0.0
        self._run_worked = self._run_waited = self._run_computed = 0.0

    def add(self, *, worked: float, waited: float, computed: float = 0.0) -> None:
        """How long the consumer worked on a batch, of it on a core, and then waited for the next."""
        self._run_worked += worked
        self._run_waited += waited
        self._run_computed += computed

    def end_run(self) -> None:
        """All batches of a run have been taken."""
        worked, waited, computed = self._run_worked, self._run_waited, self._run_computed
        self._run_worked = self._run_waited = self._run_computed = 0.0
        self._worked += (worked - self._worked) * _PACE_WEIGHT
        self._computed += (computed - self._computed) * _PACE_WEIGHT
        # one long wait, as for the first window, tells nothing of the consumer
        waited = min(waited, _MAX_WAIT_RATIO * self._worked)
        self._waited += (waited - self._waited) * _PACE_WEIGHT

    def begin(self) -> None:
        """The first window has been handed out."""
        self._has_started = True

    @property
    def works(self) -> bool:
        """Whether it worked for most of the time, of late; who has not come to a second window is taken to."""
        return not self._has_started or self._worked > 2 * self._waited

    @property
    def computes(self) -> bool:
        """Whether it kept a core busy for nearly all of the time, of late, and so hardly waited."""
        return self._computed > _COMPUTES_SHARE * (self._worked + self._waited)


class CoreTime:
    """What a thread has spent on cores since it began to count."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Count from now on, in this thread."""
        self._thread, self._from = threading.get_ident(), time.thread_time()

    def seconds(self) -> float:
        """Seconds on a core; 0 where another thread began to count."""
        # a thread that has ended may have left its number to another
        return max(0.0, time.thread_time() - self._from) if self._thread == threading.get_ident() else 0.0
