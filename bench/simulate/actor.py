"""The coordinator's process: the real coordination, calls that come late or twice, and its deaths."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from bench.simulate.account import check_account
from bench.simulate.machines import Job, Machines
from bench.simulate.scenario import Scenario
from bench.simulate.work import Handle
from bench.simulate.world import Violation, World
from windrow.pipeline.coordinator.core import TICK_SECONDS, Answer, CoordinatorCore
from windrow.pipeline.coordinator.driver import Driver
from windrow.pipeline.coordinator.failures import Failure
from windrow.pipeline.plan.program import Program
from windrow.pipeline.tasks.map_task import Task, TaskReport

__all__ = ["Actor", "Caller"]

# what the actor's methods do beside calling coordination
_WAKES = frozenset(["open_epoch", "close_shard"])


class Caller(Protocol):
    """A process that calls the coordinator."""

    alive: bool


@dataclass(eq=False)
class _Call:
    caller: Caller
    method: str
    args: tuple[Any, ...]
    reply: Callable[[Any], None] | None


@dataclass(eq=False)
class _Parked:
    call: _Call
    polling: Generator[float, bool, Answer]


class Actor:
    """An actor that Ray restarts, whose unanswered calls Ray makes again."""

    def __init__(
        self,
        world: World,
        scenario: Scenario,
        program: Program,
        machines: Machines,
        nodes: dict[int, str],
        coordination: type[CoordinatorCore],
    ) -> None:
        self._world, self._scenario = world, scenario
        self._program, self._machines, self._nodes = program, machines, nodes
        self._coordination_type = coordination
        self._resources = scenario.resources(program)
        self._calls: dict[_Call, None] = {}
        self._up = True
        self._restarted = self.ended = False
        self._begin()

    def _begin(self) -> None:
        self._world.lives += 1
        self.life = self._world.lives
        self._machines.disown(self.life)
        self._parked: list[_Parked] = []
        self._ticking = False
        self._drivers = 0
        self._readers: dict[int, str] = {}
        # the driver that runs tasks, and what those are expected to put out
        self.driver: Driver | None = None
        self.running_bytes = 0
        self.coordination = self._coordination_type(self._program, self._resources, dict(self._nodes), self)

    # --- its life

    def die(self, back_seconds: float) -> None:
        """The process dies, and with it all that it owned; a new one begins a little later."""
        if not self._up or self.ended:
            return
        self._world.fault("coordinator restarted")
        self._up = False
        self._restarted = True
        self._begin()
        self._world.after(back_seconds, self._come_back)

    def _come_back(self) -> None:
        self._up = True
        for call in list(self._calls):
            if not call.caller.alive:
                del self._calls[call]
                continue
            # executed or not, its answer has not arrived
            self._world.happened["call made again"] += 1
            self._world.send(self._execute, call, self.life)

    def end(self) -> None:
        """Nobody needs it any more."""
        self.ended = True
        self._begin()

    # --- calls

    def call(
        self, caller: Caller, method: str, *args: Any, reply: Callable[[Any], None] | None = None
    ) -> None:
        """Call a method; the answer comes later, if the caller still lives."""
        call = _Call(caller, method, args, reply)
        self._calls[call] = None
        self._world.send(self._execute, call, self.life)

    def _execute(self, call: _Call, life: int) -> None:
        if self.ended or not self._up or life != self.life or call not in self._calls:
            return
        self._world.note(call.method, *call.args[1:] if call.method == "poll" else call.args)
        if not self._ticking and call.method in ("open_epoch", "poll"):
            self._ticking = True
            self._tick(self.life)
        if call.method == "poll":
            self._go_on(_Parked(call, self.coordination.poll(*call.args)), None)
            return
        result = getattr(self.coordination, call.method)(*call.args)
        if call.method == "open_epoch" and not isinstance(result, Failure):
            self._readers[call.args[0].shard] = call.args[0].token
        if call.method in _WAKES or result is True:
            self._wake()
        self._answer(call, result)

    def _answer(self, call: _Call, result: Any) -> None:
        check_account(self, self._scenario)
        self._world.send(self._deliver, call, result, self.life)

    def _deliver(self, call: _Call, result: Any, life: int) -> None:
        if life != self.life and self._world.happens(0.5):
            return  # lost with the process that sent it
        if self._calls.pop(call, call) is None and call.caller.alive and call.reply is not None:
            call.reply(result)

    def _go_on(self, parked: _Parked, news: bool | None) -> None:
        try:
            seconds = next(parked.polling) if news is None else parked.polling.send(news)
        except StopIteration as end:
            self._check_reader(parked.call, end.value)
            self._answer(parked.call, _pickled(end.value))
            return
        self._parked.append(parked)
        self._world.after(seconds, self._time_out, parked, len(self._parked))

    def _time_out(self, parked: _Parked, _: int) -> None:
        if parked in self._parked:
            self._parked.remove(parked)
            self._go_on(parked, False)

    def _check_reader(self, call: _Call, answer: Answer) -> None:
        request = call.args[0]
        if isinstance(answer, tuple) and answer[1].outputs:
            reader = self._readers.setdefault(request.shard, request.token)
            if reader != request.token:
                raise Violation(f"two readers of shard {request.shard} are served at once")

    # --- what its event loop does

    def _tick(self, life: int) -> None:
        if life == self.life and not self.ended:
            self.coordination.tick()
            self._wake()
            self._world.after(TICK_SECONDS, self._tick, life)

    def _wake(self) -> None:
        if self._parked:
            parked, self._parked = self._parked, []
            self._world.after(0.0, self._resume, parked, self.life)

    def _resume(self, parked: list[_Parked], life: int) -> None:
        for one in parked:
            if life == self.life:
                self._go_on(one, True)

    def _take(
        self,
        driver: Driver,
        life: int,
        task: Task,
        report: TaskReport,
        output: Any,
        kept: Sequence[Handle],
    ) -> None:
        if life != self.life:
            return
        work = task.work
        self._world.note("done", work.epoch, work.window, work.part, work.stage, work.attempt)
        if driver is self.driver:
            self.running_bytes -= self._expect(task)
        driver.task_done(task, report, output, "", kept)
        check_account(self, self._scenario)
        self._wake()

    # --- the host of coordination

    def now(self) -> float:
        """Simulated seconds."""
        return self._world.now

    def name_driver(self) -> str:
        """A name of this life's own."""
        self._drivers += 1
        return f"{self.life}.{self._drivers}"

    def is_restarted(self) -> bool:
        """Whether it has died before."""
        return self._restarted

    def user_warnings(self) -> tuple[str, ...]:
        """Nothing."""
        return ()

    def submit(self, driver: Driver, task: Task, tables: Any, cached: Sequence[Any]) -> None:
        """Run a task on the simulated nodes."""
        work, life = task.work, self.life
        self._world.note("run", work.epoch, work.window, work.part, work.stage, work.attempt)
        if driver is not self.driver:
            self.driver, self.running_bytes = driver, 0
        self.running_bytes += self._expect(task)

        def done(task: Task, report: TaskReport, output: Any, kept: Sequence[Handle]) -> None:
            self._take(driver, life, task, report, output, kept)

        def failed(failure: Failure) -> None:
            if life == self.life:
                driver.task_failed(failure)
                self._wake()

        def lost(task: Task) -> None:
            # as the actor on Ray
            if life == self.life:
                self._machines.submit(Job(driver.blocks_lost(task), (), life, done, failed, lost))

        inputs = tuple(cached) if tables is None else (tables, *cached)
        self._machines.submit(Job(task, inputs, life, done, failed, lost))

    def _expect(self, task: Task) -> int:
        # what a later stage puts out takes the room of its input
        return self._machines.expected_bytes(task.blocks) if task.reads else 0


def _pickled(answer: Answer) -> Answer:
    """An answer as it is when it is sent, whatever becomes of its lists in the driver."""
    if not isinstance(answer, tuple):
        return answer
    attempt, reply = answer
    return attempt, replace(reply, outputs={part: list(slices) for part, slices in reply.outputs.items()})
