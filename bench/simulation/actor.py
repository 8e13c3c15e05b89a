"""The coordinator actor: the real coordinator core behind delayed and duplicated calls and restarts."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import astuple, dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeVar

from bench.simulation.machines import Job, Machines
from bench.simulation.world import Violation, World
from windrow.pipeline.coordinator.core import TICK_SECONDS, Answer, CoordinatorCore
from windrow.pipeline.coordinator.driver import Driver
from windrow.pipeline.coordinator.failures import Failure
from windrow.pipeline.plan.job import Resources
from windrow.pipeline.plan.program import Program
from windrow.pipeline.tasks.task import Task, TaskReport

T = TypeVar("T")
# after these methods the actor wakes pending polls, as the one on Ray does
_WAKES = frozenset(["open_epoch", "close_shard"])


class Caller(Protocol):
    """A process that calls the coordinator; replies are delivered only while it is alive."""

    alive: bool
    shard: int


@dataclass(eq=False)
class _Call:
    caller: Caller
    method: str
    args: tuple[Any, ...]
    reply: Callable[[Any], None] | None


@dataclass(eq=False)
class _PendingPoll:
    call: _Call
    polling: Generator[float, bool, Answer]


@dataclass(frozen=True)
class Polled:
    """The answer with which a poll ends."""

    answer: Answer


class Actor:
    """An actor that Ray restarts and whose unanswered calls Ray retries.

    ``check`` is called before each answer and after each task.
    """

    def __init__(
        self,
        world: World,
        program: Program,
        resources: Resources,
        machines: Machines,
        nodes: dict[int, str],
        check: Callable[[Actor], None] = lambda _: None,
    ) -> None:
        self._world, self._check = world, check
        self._program, self._machines, self._nodes, self._resources = program, machines, nodes, resources
        self._calls: dict[_Call, None] = {}
        self._up = True
        self._restarted = self.ended = False
        self._begin()

    def _begin(self) -> None:
        self._world.incarnations += 1
        self.incarnation = self._world.incarnations
        self._machines.set_owner(self.incarnation)
        self._pending: list[_PendingPoll] = []
        self._ticking = False
        self._drivers = 0
        self._readers: dict[int, str] = {}
        # the driver that runs tasks, and the expected output bytes of those that are running
        self.driver: Driver | None = None
        self.running_bytes = 0
        self.core = CoordinatorCore(self._program, self._resources, dict(self._nodes), self)

    # --- failures and restarts

    def die(self, downtime_seconds: float) -> None:
        """Kill the process and everything it owns; a new process starts after ``downtime_seconds``."""
        if not self._up or self.ended:
            return
        self._world.fault("coordinator restarted")
        self._up = False
        self._restarted = True
        self._begin()
        self._world.after(downtime_seconds, self._restart)

    def _restart(self) -> None:
        self._up = True
        for call in list(self._calls):
            if not call.caller.alive:
                del self._calls[call]
                continue
            # retried whether it was executed or not, because its answer has not arrived
            self._world.fault_counts["call retried"] += 1
            self._world.send(self._execute, call, self.incarnation)

    def end(self) -> None:
        self.ended = True
        self._begin()

    # --- calls

    def call(
        self, caller: Caller, method: str, *args: Any, reply: Callable[[Any], None] | None = None
    ) -> None:
        """Call a method; ``reply`` receives the answer later, if the caller is still alive."""
        call = _Call(caller, method, args, reply)
        self._calls[call] = None
        self._world.send(self._execute, call, self.incarnation)

    def _execute(self, call: _Call, incarnation: int) -> None:
        if self.ended or not self._up or incarnation != self.incarnation or call not in self._calls:
            return
        self._world.record(call.method, *call.args[1:] if call.method == "poll" else call.args)
        if not self._ticking and call.method in ("open_epoch", "poll"):
            self._ticking = True
            self._tick(self.incarnation)
        if call.method == "poll":
            self._advance(_PendingPoll(call, self.core.poll(*call.args)), None)
            return
        work = partial(getattr(self.core, call.method), *call.args)
        self.serve(work, partial(self._executed, call), call.caller)

    def serve(self, work: Callable[[], T], then: Callable[[T], None], caller: Caller | None = None) -> None:
        """Let the core work, for a caller or for what happened; here it takes no time."""
        then(work())

    def _executed(self, call: _Call, result: Any) -> None:
        if call.method == "open_epoch" and not isinstance(result, Failure):
            self._readers[call.args[0].shard] = call.args[0].token
        if call.method in _WAKES or result is True:
            self._wake()
        self._answer(call, result)

    def _answer(self, call: _Call, result: Any) -> None:
        self._check(self)
        self._world.send(self._deliver, call, result, self.incarnation)

    def _deliver(self, call: _Call, result: Any, incarnation: int) -> None:
        if incarnation != self.incarnation and self._world.happens(0.5):
            return  # lost with the process that sent it
        if self._calls.pop(call, call) is None and call.caller.alive and call.reply is not None:
            call.reply(result)

    def _advance(self, pending: _PendingPoll, changed: bool | None) -> None:
        def work() -> float | Polled:
            try:
                return next(pending.polling) if changed is None else pending.polling.send(changed)
            except StopIteration as end:
                return Polled(_pickled(end.value))

        # waking up is not another call
        caller = pending.call.caller if changed is None else None
        self.serve(work, partial(self._advanced, pending), caller)

    def _advanced(self, pending: _PendingPoll, result: float | Polled) -> None:
        if isinstance(result, Polled):
            self._check_reader(pending.call, result.answer)
            self._answer(pending.call, result.answer)
            return
        self._pending.append(pending)
        self._world.after(result, self._time_out, pending)

    def _time_out(self, pending: _PendingPoll) -> None:
        if pending in self._pending:
            self._pending.remove(pending)
            self._advance(pending, False)

    def _check_reader(self, call: _Call, answer: Answer) -> None:
        request = call.args[0]
        if isinstance(answer, tuple) and answer[1].outputs:
            reader = self._readers.setdefault(request.shard, request.token)
            if reader != request.token:
                raise Violation(f"two readers of shard {request.shard} are served at the same time")

    # --- event loop

    def _tick(self, incarnation: int) -> None:
        if incarnation == self.incarnation and not self.ended:
            self.serve(self.core.tick, lambda _: self._wake())
            self._world.after(TICK_SECONDS, self._tick, incarnation)

    def _wake(self) -> None:
        if self._pending:
            pending, self._pending = self._pending, []
            self._world.after(0.0, self._resume, pending, self.incarnation)

    def _resume(self, pending: list[_PendingPoll], incarnation: int) -> None:
        for one in pending:
            if incarnation == self.incarnation:
                self._advance(one, True)

    def _task_done(self) -> None:
        self._check(self)
        self._wake()

    # --- environment of the coordinator core

    def now(self) -> float:
        return self._world.now

    def name_driver(self) -> str:
        self._drivers += 1
        return f"{self.incarnation}.{self._drivers}"

    def is_restarted(self) -> bool:
        return self._restarted

    def user_warnings(self) -> tuple[str, ...]:
        return ()

    def submit(self, driver: Driver, task: Task, tables: Any, cached: Sequence[Any]) -> None:
        incarnation = self.incarnation
        self._world.record("run", *astuple(task.work))
        if driver is not self.driver:
            self.driver, self.running_bytes = driver, 0
        self.running_bytes += self._expect(task)

        def done(task: Task, report: TaskReport, output: Any, cached_handles: Sequence[Any]) -> None:
            if incarnation == self.incarnation:
                self._world.record("done", *astuple(task.work))
                if driver is self.driver:
                    self.running_bytes -= self._expect(task)
                work = partial(driver.task_done, task, report, output, "", cached_handles)
                self.serve(work, lambda _: self._task_done())

        def failed(failure: Failure) -> None:
            if incarnation == self.incarnation:
                driver.task_failed(failure)
                self._wake()

        def lost(task: Task) -> None:
            # the same as the actor on Ray does
            if incarnation == self.incarnation:
                self._machines.submit(Job(driver.blocks_lost(task), (), incarnation, done, failed, lost))

        inputs = tuple(cached) if tables is None else (tables, *cached)
        self._machines.submit(Job(task, inputs, incarnation, done, failed, lost))

    def _expect(self, task: Task) -> int:
        # the output of a later stage replaces its input in memory
        return int(self._program.estimate.held_bytes[list(task.blocks)].sum()) if task.reads else 0


def _pickled(answer: Answer) -> Answer:
    """Copy an answer's lists, as pickling would, so that later changes in the driver do not reach it."""
    if not isinstance(answer, tuple):
        return answer
    attempt, reply = answer
    return attempt, replace(reply, outputs={part: list(slices) for part, slices in reply.outputs.items()})
