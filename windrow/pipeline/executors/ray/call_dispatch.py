"""Runs calls as Ray tasks to their end; calls that stay silent are placed again, and the first answer counts."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import ray

from windrow.core.errors import StallError, WindrowError
from windrow.pipeline.executors.ray.asking import StallWatch, get_all
from windrow.pipeline.executors.ray.deaths import is_conclusive
from windrow.pipeline.executors.ray.nodes import describe_starving, list_nodes, others_hold_cpus
from windrow.pipeline.executors.ray.placement import MOMENT_SECONDS, Placement, Planner
from windrow.pipeline.failures import Failure

__all__ = ["CallDispatcher"]

_CALL_CPUS = 1.0
# Calls that Ray knows of for each CPU: enough that no CPU waits for the next call.
_AHEAD = 4
_TICK_SECONDS = 1.0
# A tick so late means that this process had no core, and has not heard which calls have begun.
_LATE_SECONDS = 3.0


@dataclass(eq=False)
class _Copy:
    """One copy of a call: a stream that yields once when the call begins, and then its answer."""

    key: int
    number: int
    stream: Any
    since: float
    begun: bool = False
    overtaken: bool = False
    cancelled: bool = False

    def awaited(self) -> Any:
        """What to wait for; a cancelled stream is ready at once, but complete only when the task has ended."""
        ends = self.overtaken and (self.begun or self.cancelled)
        return self.stream.completed() if ends else self.stream


class CallDispatcher:
    """Has every call run to its end, wherever the cluster can.

    Parameters
    ----------
    calls
        How many calls there are.
    submit
        Submits one copy of a call, given the call's number and where it is to run; returns its stream.
    describe
        The call of a number in words, for errors.
    explain
        Turns the error that ended a call's task into the one to raise.
    """

    def __init__(
        self,
        calls: int,
        submit: Callable[[int, Placement], Any],
        describe: Callable[[int], str],
        explain: Callable[[str, ray.exceptions.RayError], WindrowError],
    ) -> None:
        self._calls = calls
        self._submit_call = submit
        self._describe = describe
        self._explain = explain
        self._planner = Planner(_CALL_CPUS)
        self._next = 0
        self._open: dict[int, list[_Copy]] = {}
        self._copies: list[_Copy] = []
        self._results: dict[int, Any] = {}
        self._cores = _count_cores(list_nodes())
        self._ticked_at = time.monotonic()
        self._warned = False
        self._stall = StallWatch()

    def run(self) -> list[Any]:
        """Run all calls; returns their answers in order.

        Nothing that it has submitted runs any more when it returns or raises.
        """
        try:
            while self._next < self._calls or self._open:
                self._fill()
                self._tick()
                for copy in self._await_copies():
                    self._hear(copy)
                self._stall.check(self._describe_waiting)
        except BaseException:
            # the error to raise is the one that has brought us here
            with suppress(Exception):
                self._end(at_once=True)
            raise
        with suppress(StallError):
            self._end(at_once=False)
        return [self._results[key] for key in range(self._calls)]

    # --- placing

    def _fill(self) -> None:
        ahead = self._cores if self._planner.starved else _AHEAD * self._cores
        while self._next < self._calls and len(self._open) < ahead:
            key, self._next = self._next, self._next + 1
            self._open[key] = []
            placement = self._planner.begin(key, time.monotonic())
            if placement is not None:
                self._submit(key, 0, placement)

    def _tick(self) -> None:
        """Place again what nothing is heard of, once a second."""
        now = time.monotonic()
        if now - self._ticked_at < _TICK_SECONDS:
            return
        late, self._ticked_at = now - self._ticked_at > _LATE_SECONDS, now
        for copy in self._copies:
            # Ray itself retries a task that has begun and whose worker or node dies
            if copy.begun and not copy.overtaken:
                self._planner.heard(copy.key, copy.number, now)
        self._cancel_overtaken(now)
        if late:
            self._planner.excuse(now)
        elif self._planner.is_due(now):
            try:
                nodes = list_nodes()
            except Exception:
                # Ray's control plane is being restarted: the next tick asks again
                return
            self._cores = _count_cores(nodes)
            self._place(self._planner.review(now, nodes))
        if self._planner.lacks_cpus and not self._warned:
            self._warned = _warn_starving()

    def _place(self, placed: Sequence[tuple[int, int, Placement]]) -> None:
        for key, number, placement in placed:
            self._submit(key, number, placement)

    def _submit(self, key: int, number: int, placement: Placement) -> None:
        copy = _Copy(key, number, self._submit_call(key, placement), time.monotonic())
        self._open[key].append(copy)
        self._copies.append(copy)

    # --- hearing

    def _await_copies(self) -> list[_Copy]:
        """The copies of which there is news, within a tick."""
        awaited = {copy.awaited(): copy for copy in self._copies}
        if not awaited:
            time.sleep(_TICK_SECONDS)
            return []
        ready, left = ray.wait(list(awaited), num_returns=1, timeout=_TICK_SECONDS)
        if ready and left:
            ready += ray.wait(left, num_returns=len(left), timeout=0)[0]
        return [awaited[one] for one in ready]

    def _hear(self, copy: _Copy) -> None:
        self._stall.note_progress()
        if copy.overtaken and (copy.begun or copy.cancelled):
            self._copies.remove(copy)
            self._planner.end_copy(copy.key, copy.number)
            self._refill()
            return
        try:
            answer = self._read(copy)
        except ray.exceptions.RayError as error:
            self._fail(copy, error)
            return
        if answer is None:
            return
        (value,) = answer
        if not copy.begun:
            copy.begun = True
            self._planner.heard(copy.key, copy.number, time.monotonic())
        elif isinstance(value, Failure):
            self._fail(copy, value)
        else:
            self._succeed(copy, value)

    def _read(self, copy: _Copy) -> tuple[Any] | None:
        """What a copy has yielded next, in a tuple; None where that is not there yet after all."""
        try:
            ref = copy.stream._next_sync(_TICK_SECONDS)
        except StopIteration:
            raise ray.exceptions.RaySystemError("the task has ended without an answer") from None
        return None if ref.is_nil() else (get_all([ref], self._describe(copy.key))[0],)

    def _succeed(self, copy: _Copy, value: Any) -> None:
        self._results[copy.key] = value
        self._copies.remove(copy)
        now = time.monotonic()
        waiting = self._planner.end(copy.key, copy.number, now)
        for other in self._open.pop(copy.key):
            other.overtaken = other is not copy
            if other.overtaken and other.number in waiting:
                self._cancel(other)
        self._cancel_overtaken(now)
        self._refill()

    def _fail(self, copy: _Copy, error: ray.exceptions.RayError | Failure) -> None:
        """Raise what ended a copy, unless another one may yet give the answer."""
        if copy.overtaken:
            # what is left to know is when its task has ended
            copy.cancelled = True
            return
        self._copies.remove(copy)
        others = self._open[copy.key]
        others.remove(copy)
        # two copies that write the same file may get in each other's way
        conclusive = isinstance(error, Failure) or is_conclusive(error)
        if any(other.begun or not conclusive for other in others):
            self._planner.end_copy(copy.key, copy.number)
            return
        if isinstance(error, Failure):
            error.rethrow()
        raise self._explain(self._describe(copy.key), error) from error

    def _refill(self) -> None:
        """Where calls share cores, one that has ended makes way for the next."""
        if self._planner.starved:
            self._place(self._planner.review(time.monotonic()))

    # --- ending

    def _end(self, *, at_once: bool) -> None:
        """Cancel copies that have not begun, and wait for the others to end.

        Parameters
        ----------
        at_once
            Whether calls are pending that must not begin any more.
        """
        self._open.clear()
        for copy in self._copies:
            copy.overtaken = True
            if at_once and not copy.begun:
                self._cancel(copy)
        try:
            self._await_ends()
        except StallError:
            for copy in self._copies:
                self._cancel(copy, force=True)
            with suppress(StallError):
                self._await_ends(MOMENT_SECONDS)
            raise

    def _await_ends(self, seconds: float | None = None) -> None:
        stall = StallWatch(seconds)
        begun_at = time.monotonic()
        while self._copies and ray.is_initialized():
            now = time.monotonic()
            self._cancel_overtaken(now)
            if now - begun_at > MOMENT_SECONDS:
                # A running call ignores it. But Ray may be about to retry one that has begun.
                for copy in self._copies:
                    if not copy.cancelled:
                        self._cancel(copy)
            for copy in self._await_copies():
                stall.note_progress()
                self._hear(copy)
            stall.check(lambda: f"{len(self._copies):,} calls that are not needed any more have not ended")

    def _cancel_overtaken(self, now: float) -> None:
        """Cancel copies that were overtaken while they waited for a CPU, or for a worker that has died.

        Not at once: a worker may be importing what a copy needs, and an import must not be interrupted.
        """
        for copy in self._copies:
            waits = copy.overtaken and not (copy.begun or copy.cancelled)
            if waits and now - copy.since >= MOMENT_SECONDS:
                self._cancel(copy)

    def _cancel(self, copy: _Copy, *, force: bool = False) -> None:
        copy.cancelled = True
        # where that fails, the copy is waited for like one that runs
        with suppress(Exception):
            ray.cancel(copy.stream, force=force, recursive=False)

    def _describe_waiting(self) -> str:
        begun = sum(any(copy.begun for copy in copies) for copies in self._open.values())
        first = self._describe(min(self._open)) if self._open else "no call"
        return (
            f"{first} and {max(0, len(self._open) - 1):,} more calls wait for Ray: {begun:,} of them run, the "
            "others wait for a CPU or for a worker process, and none has begun or ended"
        )


def _count_cores(nodes: Sequence[Any]) -> int:
    return max(1, sum(node.cores for node in nodes))


def _warn_starving() -> bool:
    """Warn that calls run without CPUs, where that is so; returns whether it is."""
    # Ray's control plane may be restarting: the next tick asks again
    try:
        if not others_hold_cpus(_CALL_CPUS):
            return False
        (text,) = describe_starving()
    except Exception:
        return False
    warnings.warn(text, RuntimeWarning, stacklevel=2)
    return True
