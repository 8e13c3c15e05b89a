"""Runs the calls of sources and sinks as Ray tasks, silent ones a second time, outside any run of a job."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import ray

from windrow.core.errors import StallError, WindrowError
from windrow.core.user_warnings import warn_user
from windrow.pipeline.coordinator.failures import Failure
from windrow.pipeline.executors.ray.cluster import format_starvation_warning, list_nodes, others_hold_cpus
from windrow.pipeline.executors.ray.coordinator_calls import StallWatch, get_all, is_conclusive
from windrow.pipeline.executors.ray.placement import MIN_SILENCE_SECONDS, Placement, Planner

_CALL_CPUS = 1.0
# Calls submitted to Ray per CPU: enough that no CPU waits for the next call. Calls that wait for actors give their CPU
# back meanwhile, so that all submitted ones run, and hold their blocks: then one reads while another waits.
_CALLS_PER_CPU, _WAITING_CALLS_PER_CPU = 4, 2
_TICK_SECONDS = 1.0
# A tick this late means that this process got no CPU time, so it has not seen which calls have started.
_LATE_SECONDS = 3.0
_READ_SECONDS = 1.0


@dataclass(eq=False)
class _Copy:
    """One copy of a call: reads its stream of results, cancels it, and tracks whether it has ended."""

    # the call's number, and the copy's number
    key: int
    number: int
    # yields once when the call starts, then its answer, and then its outputs
    stream: Any
    # time of submission
    since: float
    # the answer, in a tuple, while outputs are still awaited
    answer: tuple[Any] | None = None
    # references of the outputs so far, which this process owns
    outputs: list[Any] = field(default_factory=list)
    started: bool = False
    # whether its answer is not needed any more
    superseded: bool = False
    # whether it was cancelled, or Ray has ended it
    cancelled: bool = False

    def is_draining(self) -> bool:
        """Whether only its end is still awaited."""
        return self.superseded and (self.started or self.cancelled)

    def wait_ref(self) -> Any:
        """What to wait for; a cancelled stream is ready immediately, but complete only once the task has ended."""
        return self.stream.completed() if self.is_draining() else self.stream

    def read(self, who: str) -> tuple[Any] | None:
        """Read the next yielded value, in a tuple; None if it is not there yet after all."""
        ref = self._next_ref(_READ_SECONDS)
        return None if ref is None else (get_all([ref], who)[0],)

    def has_outputs(self, count: int) -> bool:
        """Take the references of the outputs that are there; returns whether all are."""
        while len(self.outputs) < count:
            # the caller has waited for the first one
            ref = self._next_ref(_READ_SECONDS if not self.outputs else 0)
            if ref is None:
                return False
            self.outputs.append(ref)
        return True

    def _next_ref(self, seconds: float) -> Any | None:
        try:
            ref = self.stream._next_sync(seconds)
        except StopIteration:
            raise ray.exceptions.RaySystemError("the task has ended without an answer") from None
        return None if ref.is_nil() else ref

    def cancel(self, *, force: bool = False) -> None:
        """Cancel the copy; a running call runs to its end, unless ``force`` kills its process."""
        self.cancelled = True
        # if cancelling fails, the copy is awaited like a running one
        with suppress(Exception):
            ray.cancel(self.stream, force=force, recursive=False)


class CallDispatcher:
    """Runs every call to completion, wherever the cluster can.

    ``submit`` submits one copy of a call, given the call's number and its placement, and returns its stream.
    ``describe`` describes a call for errors, given its number. ``make_error`` converts the error that ended a
    call's task into the one to raise. Each call yields ``outputs`` objects after its answer. They are not
    fetched: `outputs` has their references. ``waits_for_actors``: whether calls wait for actors, without a CPU.
    """

    def __init__(
        self,
        calls: int,
        submit: Callable[[int, Placement], Any],
        describe: Callable[[int], str],
        make_error: Callable[[str, ray.exceptions.RayError], WindrowError],
        outputs: int = 0,
        *,
        waits_for_actors: bool = False,
    ) -> None:
        self._calls = calls
        self._calls_per_cpu = _WAITING_CALLS_PER_CPU if waits_for_actors else _CALLS_PER_CPU
        self._output_count = outputs
        self._outputs: dict[int, list[Any]] = {}
        self._submit_call = submit
        self._describe = describe
        self._make_error = make_error
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

        No submitted call still runs when it returns or raises.
        """
        try:
            while self._next < self._calls or self._open:
                self._fill()
                self._tick()
                self._receive_all(self._stall)
                self._stall.check(self._describe_waiting)
        except BaseException:
            # the error to raise is the original one
            with suppress(Exception):
                self._end(cancel_unstarted=True)
            raise
        with suppress(StallError):
            self._end(cancel_unstarted=False)
        return [self._results[key] for key in range(self._calls)]

    @property
    def outputs(self) -> list[list[Any]]:
        """The references of each call's outputs, which this process owns, so that Ray rebuilds lost ones."""
        return [self._outputs[key] for key in range(self._calls)]

    # --- placing

    def _fill(self) -> None:
        ahead = self._cores if self._planner.starved else self._calls_per_cpu * self._cores
        while self._next < self._calls and len(self._open) < ahead:
            key, self._next = self._next, self._next + 1
            self._open[key] = []
            placement = self._planner.begin(key, time.monotonic())
            if placement is not None:
                self._submit(key, 0, placement)

    def _tick(self) -> None:
        """Place silent calls again, at most once a second."""
        now = time.monotonic()
        if now - self._ticked_at < _TICK_SECONDS:
            return
        late, self._ticked_at = now - self._ticked_at > _LATE_SECONDS, now
        for copy in self._copies:
            # once a task has started, Ray itself retries it if its worker or node dies
            if copy.started and not copy.superseded:
                self._planner.note_heartbeat(copy.key, copy.number, now)
        self._cancel_superseded(now)
        if late:
            self._planner.reset_timeouts(now)
        elif self._planner.is_due(now):
            try:
                nodes = list_nodes()
            except Exception:
                # Ray's control plane is restarting: the next tick retries
                return
            self._cores = _count_cores(nodes)
            for placed in self._planner.review(now, nodes):
                self._submit(*placed)
        if self._planner.lacks_cpus and not self._warned:
            self._warned = _warn_starving()

    def _submit(self, key: int, number: int, placement: Placement) -> None:
        copy = _Copy(key, number, self._submit_call(key, placement), time.monotonic())
        self._open[key].append(copy)
        self._copies.append(copy)

    # --- receiving

    def _receive_all(self, stall: StallWatch) -> None:
        """Receive whatever becomes ready within a tick."""
        copies = {copy.wait_ref(): copy for copy in self._copies}
        if not copies:
            time.sleep(_TICK_SECONDS)
            return
        ready, left = ray.wait(list(copies), num_returns=1, timeout=_TICK_SECONDS)
        if ready and left:
            ready += ray.wait(left, num_returns=len(left), timeout=0)[0]
        if ready:
            stall.note_progress()
        # before any answer is received, since that can supersede another copy in this list
        ended = [copies[one] for one in ready if copies[one].is_draining()]
        for copy in ended:
            self._copies.remove(copy)
            self._planner.end_copy(copy.key, copy.number)
        if ended:
            self._refill()
        for copy in (copies[one] for one in ready):
            if copy not in ended and not copy.is_draining():
                self._receive(copy)

    def _receive(self, copy: _Copy) -> None:
        try:
            answer = copy.answer or copy.read(self._describe(copy.key))
            is_answer = answer is not None and copy.started and not isinstance(answer[0], Failure)
            if is_answer and self._output_count and not copy.has_outputs(self._output_count):
                copy.answer = answer
                return
        except ray.exceptions.RayError as error:
            self._fail(copy, error)
            return
        if answer is None:
            return
        (value,) = answer
        if not copy.started:
            copy.started = True
            self._planner.note_heartbeat(copy.key, copy.number, time.monotonic())
        elif isinstance(value, Failure):
            self._fail(copy, value)
        else:
            self._succeed(copy, value)

    def _succeed(self, copy: _Copy, value: Any) -> None:
        self._results[copy.key] = value
        self._outputs[copy.key] = copy.outputs
        self._copies.remove(copy)
        now = time.monotonic()
        waiting = self._planner.end(copy.key, copy.number, now)
        for other in self._open.pop(copy.key):
            other.superseded = other is not copy
            if other.superseded and other.number in waiting:
                other.cancel()
        self._cancel_superseded(now)
        self._refill()

    def _fail(self, copy: _Copy, error: ray.exceptions.RayError | Failure) -> None:
        """Raise the error that ended a copy, unless another copy can still answer."""
        if copy.superseded:
            # only the end of its task is still awaited
            copy.cancelled = True
            return
        self._copies.remove(copy)
        others = self._open[copy.key]
        others.remove(copy)
        # two copies that write the same file can disturb each other
        conclusive = isinstance(error, Failure) or is_conclusive(error)
        if any(other.started or not conclusive for other in others):
            self._planner.end_copy(copy.key, copy.number)
            self._refill()
            return
        if isinstance(error, Failure):
            error.rethrow()
        raise self._make_error(self._describe(copy.key), error) from error

    def _refill(self) -> None:
        """Where calls run without CPUs, place the next one on the core that has become free."""
        if self._open and self._planner.starved:
            for placed in self._planner.review(time.monotonic()):
                self._submit(*placed)

    # --- ending

    def _end(self, *, cancel_unstarted: bool) -> None:
        """Wait for all copies to end; ``cancel_unstarted`` if calls are pending that must not start."""
        self._open.clear()
        for copy in self._copies:
            copy.superseded = True
            if cancel_unstarted and not copy.started:
                copy.cancel()
        try:
            self._await_ends()
        except StallError:
            for copy in self._copies:
                copy.cancel(force=True)
            with suppress(StallError):
                self._await_ends(MIN_SILENCE_SECONDS)
            raise

    def _await_ends(self, seconds: float | None = None) -> None:
        stall = StallWatch(seconds)
        started_at = time.monotonic()
        while self._copies and ray.is_initialized():
            now = time.monotonic()
            self._cancel_superseded(now)
            if now - started_at > MIN_SILENCE_SECONDS:
                # A running call ignores this, but Ray may be about to retry one that has started.
                for copy in self._copies:
                    if not copy.cancelled:
                        copy.cancel()
            self._receive_all(stall)
            stall.check(lambda: f"{len(self._copies):,} calls that are not needed any more have not ended")

    def _cancel_superseded(self, now: float) -> None:
        """Cancel copies that were superseded while they waited for a CPU, or for a worker that has died.

        Only after a delay: a worker may be importing what a copy needs, and an import must not be interrupted.
        """
        for copy in self._copies:
            waits = copy.superseded and not (copy.started or copy.cancelled)
            if waits and now - copy.since >= MIN_SILENCE_SECONDS:
                copy.cancel()

    def _describe_waiting(self) -> str:
        started = sum(any(copy.started for copy in copies) for copies in self._open.values())
        first = self._describe(min(self._open)) if self._open else "no call"
        return (
            f"{first} and {max(0, len(self._open) - 1):,} more calls wait for Ray: {started:,} of them run, the "
            "others wait for a CPU or for a worker process, and none has started or ended"
        )


def _count_cores(nodes: Sequence[Any]) -> int:
    return max(1, sum(node.cores for node in nodes))


def _warn_starving() -> bool:
    """Warn if calls run without CPUs because others hold all of them; returns whether that is so."""
    # Ray's control plane may be restarting: the next tick retries
    try:
        if not others_hold_cpus(_CALL_CPUS):
            return False
        text = format_starvation_warning()
    except Exception:
        return False
    warn_user(text)
    return True
