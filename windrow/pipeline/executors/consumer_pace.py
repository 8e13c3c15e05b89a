"""Measures whether a consumer works or waits, which sets the priority and number of cores of its tasks."""

from __future__ import annotations

__all__ = ["Pace"]

# moving average over about eight runs; a wait counts as at most this multiple of the work
_PACE_WEIGHT, _MAX_WAIT_RATIO = 1 / 8, 2
_COMPUTES_SHARE = 0.9


class Pace:
    """Whether the consumer mostly works or mostly waits, as moving averages.

    Prioritizing a consumer that only waits would just delay the next window. In the first window that does
    not matter: the sooner it is consumed, the sooner two windows can alternate.
    """

    def __init__(self) -> None:
        self._has_started = False
        self._worked = self._waited = self._computed = 0.0
        self._run_worked = self._run_waited = self._run_computed = 0.0

    def add(self, *, worked: float, waited: float, computed: float = 0.0) -> None:
        """Add the seconds that the consumer worked on a batch, was on a core, and waited for the next batch."""
        self._run_worked += worked
        self._run_waited += waited
        self._run_computed += computed

    def end_run(self) -> None:
        """Update the averages: all batches of a run have been taken."""
        worked, waited, computed = self._run_worked, self._run_waited, self._run_computed
        self._run_worked = self._run_waited = self._run_computed = 0.0
        self._worked += (worked - self._worked) * _PACE_WEIGHT
        self._computed += (computed - self._computed) * _PACE_WEIGHT
        # one long wait, such as that for the first window, does not characterize the consumer
        waited = min(waited, _MAX_WAIT_RATIO * self._worked)
        self._waited += (waited - self._waited) * _PACE_WEIGHT

    def begin(self) -> None:
        """Note that all runs of a window have been submitted."""
        self._has_started = True

    @property
    def works(self) -> bool:
        """Whether the consumer recently worked most of the time; assumed until the first window is submitted."""
        return not self._has_started or self._worked > 2 * self._waited

    @property
    def computes(self) -> bool:
        """Whether the consumer recently kept a core busy nearly all the time, and so hardly waited."""
        return self._computed > _COMPUTES_SHARE * (self._worked + self._waited)
