"""The calls of a transform that tasks and shards make on actors: how they are sent, awaited and repeated."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray

from windrow.core.errors import TransformError
from windrow.core.user_functions import ConstructorError
from windrow.pipeline.coordinator.failures import Failure
from windrow.pipeline.executors.ray.coordinator_calls import get_all
from windrow.pipeline.tasks.map_batches import Call, Result

# Ray repeats a call within a second where nothing answers, and takes up to half a minute to see that a node has died.
# Until then, a batch of an actor there goes to another one after each of these pauses.
_UNAVAILABLE_PAUSES = (1.0, 2.0, 4.0, 8.0, 8.0, 8.0)
_NOT_REACHED = "failed to connect"
_MANAGER_LIVES = 3
# The way of a batch to an actor and back takes some 15 ms of CPU in five processes. An actor gets several at a time if
# together they are likely to take no longer than this, and to be no larger, with their results.
_CALL_SECONDS, _CALL_BYTES, _MOST_CALLS = 0.25, 32 * 2**20, 64
# It answers after this time, even if it has not made all calls.
_MOST_SECONDS = 1.0


@dataclass
class Answers:
    """What an actor returns: the results of calls in turn, at least one.

    They end with the first failure that ends the run, or once the calls have taken ``seconds``, or their batches and
    results ``size_bytes``, beyond what is set.
    """

    results: list[Result | Failure] = field(default_factory=list)
    seconds: float = 0.0
    size_bytes: int = 0

    @property
    def is_enough(self) -> bool:
        """Whether an actor returns these before it makes further calls."""
        return self.seconds > _MOST_SECONDS or self.size_bytes > _CALL_BYTES


class _Pace:
    """How many calls an actor gets at a time, by what the last ones took."""

    def __init__(self) -> None:
        self.calls_together = 1

    def note(self, answers: Answers) -> None:
        """An actor has answered."""
        used = max(answers.seconds / _CALL_SECONDS, answers.size_bytes / _CALL_BYTES) / len(answers.results)
        self.calls_together = max(1, min(int(1 / max(used, 1 / _MOST_CALLS)), 2 * self.calls_together))

    def start_again(self) -> None:
        """An actor has died."""
        self.calls_together = 1


class _ManagerLostError(Exception):
    """The manager of a pool has ended with the process that started it."""


# Ray's monitor of memory ends an actor by an error of its own
_LOSSES = (
    _ManagerLostError,
    ray.exceptions.RayActorError,
    ray.exceptions.ObjectLostError,
    ray.exceptions.OutOfMemoryError,
)


@dataclass(frozen=True)
class RayWorkers:
    """The pool of one transform, for tasks of any process; see `RemoteWorkers`.

    ``find_next`` finds those that take its place once the process that started it has ended; None: nothing does.
    """

    manager: Any
    name: str
    most: int
    find_next: Callable[[], RayWorkers] | None = field(default=None, compare=False)
    pace: _Pace = field(default_factory=_Pace, init=False, compare=False, repr=False)

    @property
    def calls_together(self) -> int:
        """See `RemoteWorkers`."""
        return self.pace.calls_together

    def start(self, calls: Sequence[Call]) -> list[Callable[[], Result]]:
        """See `RemoteWorkers`."""
        return [_Group(self, calls).take] * len(calls)

    def submit(self, sent: _Sent) -> Any:
        """Give calls to the manager; returns a reference to its reply."""
        return self.manager.submit.remote(sent.holder, sent.alone)

    def fetch(self, reply: Any, sent: _Sent) -> Answers:
        """What an actor answers to calls; a TransformError if actors died of them repeatedly."""
        where = sent.calls[0].where
        who = f"{where} on actors"
        try:
            try:
                return self._wait_across_managers(reply, sent, who)
            except ray.exceptions.ObjectLostError:
                # the rows lay on a node that has died, and nothing makes them again but this process
                sent.store()
                return self._wait_across_managers(self.submit(sent), sent, who)
        except _LOSSES as error:
            raise TransformError(
                f"{where}: the actor's process died repeatedly while it worked on this batch, from a crash in native "
                f"code, or for want of memory; its log has more. Ray says: {error}"
            ) from error

    def _wait_across_managers(self, reply: Any, sent: _Sent, who: str) -> Answers:
        """What an actor answers; where the process that started the manager dies, from the manager of the next one."""
        workers = self
        for lost in range(_MANAGER_LIVES + 1):
            try:
                return workers._wait(reply, sent, who)
            except _ManagerLostError:
                if self.find_next is None or lost == _MANAGER_LIVES:
                    raise
            workers = self.find_next()
            reply = workers.submit(sent)
        raise AssertionError("the last manager returns or raises")

    def _wait(self, reply: Any, sent: _Sent, who: str) -> Answers:
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
            try:
                answers: Answers = get_all(found, who)[0]
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
            reply = self.submit(sent)


@dataclass
class _Sent:
    """Calls on their way to an actor. ``alone``: it gets no other ones meanwhile, so it can only die of these."""

    calls: list[Call]
    alone: bool
    # the reference to the calls is in a list, so that the manager gets it instead of the rows
    holder: list[Any] = field(default_factory=list)

    def store(self) -> None:
        """Put the calls into the object store."""
        self.holder = [ray.put(self.calls)]


class _Group:
    """Calls that one actor makes in turn, until it has worked for long enough: then the others are sent again."""

    def __init__(self, workers: RayWorkers, calls: Sequence[Call]) -> None:
        self._workers = workers
        self._left = deque(calls)
        self._found: deque[Result | Failure] = deque()
        # whether each is sent by itself, to an actor that has no other ones
        self._is_divided = False
        self._sent: _Sent | None = None
        self._replies: list[Any] = []
        self._send()

    def take(self) -> Result:
        """The result of the next call."""
        while not self._found:
            if self._sent is None:
                self._send()
            self._fetch()
        self._left.popleft()
        result = self._found.popleft()
        if isinstance(result, Failure):
            result.rethrow()
        return result

    def _send(self) -> None:
        sent = _Sent(list(self._left)[: 1 if self._is_divided else None], alone=self._is_divided)
        sent.store()
        self._sent = sent
        # in a list, so that the answer is freed once it is here
        self._replies.append(self._workers.submit(sent))

    def _fetch(self) -> None:
        sent, self._sent = self._sent, None
        assert sent is not None, "calls are sent before their results are fetched"
        try:
            answers = self._workers.fetch(self._replies.pop(), sent)
        except ConstructorError:
            raise
        except TransformError:
            self._workers.pace.start_again()
            if sent.alone:
                self._left.popleft()
                raise
            # one of them may be too much for every actor, or all of them together, or one that the actor had before
            self._is_divided = True
        else:
            self._workers.pace.note(answers)
            self._found.extend(answers.results)
        finally:
            sent.holder.clear()
