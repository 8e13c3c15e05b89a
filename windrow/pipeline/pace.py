"""Whether a consumer works or waits, which decides what is done first for it."""

from __future__ import annotations

__all__ = ["Pace"]

# of about eight runs; a wait counts as so many times the work at most
_PACE_WEIGHT, _LONGEST_WAIT = 1 / 8, 2


class Pace:
    """Whether the consumer mostly works, rather than waits.

    To serve one first that takes all that it can get only puts off the next window.
    """

    def __init__(self) -> None:
        self._worked = self._waited = 0.0
        self._run_worked = self._run_waited = 0.0

    def add(self, *, worked: float, waited: float) -> None:
        """How long the consumer worked on a batch, and then waited for the next."""
        self._run_worked += worked
        self._run_waited += waited

    def end_run(self) -> None:
        """All batches of a run have been taken."""
        worked, waited = self._run_worked, self._run_waited
        self._run_worked = self._run_waited = 0.0
        self._worked += (worked - self._worked) * _PACE_WEIGHT
        # one long wait, as for the first window, tells nothing of the consumer
        waited = min(waited, _LONGEST_WAIT * self._worked)
        self._waited += (waited - self._waited) * _PACE_WEIGHT

    @property
    def works(self) -> bool:
        """Whether it worked for most of the time, of late."""
        return self._worked > 2 * self._waited
