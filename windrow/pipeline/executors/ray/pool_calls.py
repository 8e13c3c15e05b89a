"""The calls of a transform that tasks and shards make on actors: how they are sent, awaited and repeated."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import ray

from windrow.core.errors import TransformError
from windrow.pipeline.coordinator.failures import Failure
from windrow.pipeline.executors.ray.coordinator_calls import get_all
from windrow.pipeline.tasks.map_batches import Call, Result

# Ray repeats a call within a second where nothing answers, and takes up to half a minute to see that a node has died.
# Until then, a batch of an actor there goes to another one after each of these pauses.
_UNAVAILABLE_PAUSES = (1.0, 2.0, 4.0, 8.0, 8.0, 8.0)
_NOT_REACHED = "failed to connect"
_MANAGER_LIVES = 3
# The way of a batch to an actor and back takes some 15 ms of CPU in five processes. An actor gets several at a time if
# together they take no longer than this, and neither they nor their results are larger.
_CALL_SECONDS, _CALL_BYTES, _MOST_CALLS = 0.25, 16 * 2**20, 64


@dataclass
class Answers:
    """What an actor returns: the results of calls in turn, up to the first failure that ends the run.

    ``seconds`` is what they took together, ``largest_bytes`` the size of the largest batch or result.
    """

    results: list[Result | Failure]
    seconds: float = 0.0
    largest_bytes: int = 0


class _Pace:
    """How many calls an actor gets at a time, by what the last ones took."""

    def __init__(self) -> None:
        self.together = 1

    def note(self, answers: Answers) -> None:
        """An actor has answered."""
        seconds = answers.seconds / len(answers.results)
        used = max(seconds / _CALL_SECONDS, answers.largest_bytes / _CALL_BYTES, 1 / _MOST_CALLS)
        self.together = max(1, min(int(1 / used), 2 * self.together))

    def note_idle(self) -> None:
        """Some actors have nothing to do, and would have with fewer calls at a time."""
        self.together = max(1, self.together // 4)


class _ManagerLostError(Exception):
    """The manager of a pool has ended with the process that started it."""


@dataclass(frozen=True)
class RayWorkers:
    """The pool of one transform, for tasks of any process; see `RemoteWorkers`.

    ``find_next`` finds those that take its place once the process that started it has ended; None: nothing does.
    """

    manager: Any
    name: str
    most: int
    find_next: Callable[[], RayWorkers] | None = field(default=None, compare=False)
    _pace: _Pace = field(default_factory=_Pace, compare=False, repr=False)

    @property
    def together(self) -> int:
        """See `RemoteWorkers`."""
        return self._pace.together

    def start(self, calls: Sequence[Call]) -> list[Callable[[], Result]]:
        """See `RemoteWorkers`."""
        # in a list, so that the manager gets the reference instead of the rows
        holder = [ray.put(calls)]
        reply = self.manager.submit.remote(holder)
        found: list[Result | Failure] = []
        is_lost = False

        def wait(call: Call) -> Result:
            nonlocal is_lost
            if not found and not is_lost:
                try:
                    answers = self._fetch(reply, holder, calls)
                except TransformError:
                    if len(calls) == 1 or not call.skips_failed:
                        raise
                    is_lost = True
                else:
                    self._pace.note(answers)
                    found.extend(reversed(answers.results))
            if is_lost:
                # one of them ends every actor that gets it, and only its rows are to be left out
                (alone,) = self.start([call])
                return alone()
            result = found.pop()
            if isinstance(result, Failure):
                result.rethrow()
            return result

        return [partial(wait, call) for call in calls]

    def _fetch(self, reply: Any, holder: list[Any], calls: Sequence[Call]) -> Answers:
        where = calls[0].where
        who = f"{where} on actors"
        try:
            try:
                return self._wait_across_managers(reply, holder, who)
            except ray.exceptions.ObjectLostError:
                # the rows lay on a node that has died, and nothing makes them again but this process
                again = [ray.put(calls)]
                return self._wait_across_managers(self.manager.submit.remote(again), again, who)
        except (_ManagerLostError, ray.exceptions.RayActorError, ray.exceptions.ObjectLostError) as error:
            raise TransformError(
                f"{where}: the actor's process died repeatedly while it worked on this batch or another one, "
                f"from a crash in native code, or for want of memory; its log has more. Ray says: {error}"
            ) from error

    def _wait_across_managers(self, reply: Any, holder: list[Any], who: str) -> Answers:
        """What an actor answers; where the process that started the manager dies, from the manager of the next one."""
        workers = self
        for lost in range(_MANAGER_LIVES + 1):
            try:
                return workers._wait(reply, holder, who)
            except _ManagerLostError:
                if self.find_next is None or lost == _MANAGER_LIVES:
                    raise
            workers = self.find_next()
            reply = workers.manager.submit.remote(holder)
        raise AssertionError("the last manager returns or raises")

    def _wait(self, reply: Any, holder: list[Any], who: str) -> Answers:
        """What an actor answers.

        If the manager dies, which owns the answers, its next life gets the batches again; and another actor, if the one
        that has them does not answer.
        """
        lives, pauses = 0, iter(_UNAVAILABLE_PAUSES)
        while True:
            try:
                (found,) = get_all([reply], who)
            except ray.exceptions.RayActorError as error:
                raise _ManagerLostError(str(error)) from error
            if isinstance(found, Failure):
                found.rethrow()
            result, have_idle = found
            if have_idle:
                self._pace.note_idle()
            try:
                answers: Answers = get_all(result, who)[0]
                return answers
            except ray.exceptions.OwnerDiedError:
                lives += 1
                if lives > _MANAGER_LIVES:
                    raise
            except ray.exceptions.ActorUnavailableError as error:
                # one that died while it worked on the batch is left to Ray, and to the count of its repetitions
                pause = next(pauses, None) if _NOT_REACHED in str(error) else None
                if pause is None:
                    raise
                time.sleep(pause)
            reply = self.manager.submit.remote(holder)
