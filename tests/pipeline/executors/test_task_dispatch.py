"""Copies of tasks: the first answer counts, late ones are dropped, on a simulated cluster."""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from windrow.pipeline.executors.ray.placement import MIN_SILENCE_SECONDS, Node, Placement, Planner
from windrow.pipeline.executors.ray.task_dispatch import Cluster, Dispatcher, Submitted


class Output:
    """Stands for an object in the store."""


class Double:
    """A cluster in which copies end when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self.nodes = [Node("a", 2, 0.0)]
        self.looks = 0
        self.copies: list[tuple[int, int, Placement, asyncio.Future[Any]]] = []
        self.outputs: list[weakref.ref[Output]] = []
        self.withdrawn: list[Any] = []
        self.taken: list[tuple[int, Any]] = []
        self.asked = self.warnings = 0
        # whether others hold the CPUs, or an error of Ray's control plane
        self.held: bool | Exception = True
        self.tasks: set[asyncio.Task[None]] = set()
        self.errors: list[BaseException] = []
        self.cancel: Callable[[Any], None] = self.withdrawn.append
        self.starting = False
        self.refuses: Exception | None = None
        cluster = Cluster(
            lambda: self.now,
            self._look,
            lambda: self.starting,
            lambda first: self.cancel(first),
            lambda e: isinstance(e, MemoryError),
            self._spawn,
        )
        self.dispatcher = Dispatcher(Planner(1.0), cluster, self._warn)

    def _look(self) -> list[Node]:
        self.looks += 1
        if isinstance(self.refuses, ConnectionError):
            raise self.refuses
        return self.nodes

    def _warn(self) -> bool:
        self.asked += 1
        if isinstance(self.held, Exception):
            raise self.held
        self.warnings += self.held
        return self.held

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self.errors.append(error)

    def run(self) -> None:
        def submit(key: int, copy: int, placement: Placement) -> Submitted:
            if self.refuses is not None:
                raise self.refuses
            first: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            output = Output()
            self.copies.append((key, copy, placement, first))
            self.outputs.append(weakref.ref(output))
            return Submitted(first, output, ())

        async def take(done: Submitted) -> None:
            try:
                self.taken.append((len(self.taken), await done.report))
            except Exception as error:
                self.taken.append((len(self.taken), error))

        self.dispatcher.run(submit, take)

    async def end(self, at: int, result: Any = None) -> None:
        future = self.copies[at][3]
        future.set_exception(result) if isinstance(result, Exception) else future.set_result(result)
        for _ in range(5):
            await asyncio.sleep(0)

    def pass_time(self, seconds: float) -> None:
        for _ in range(round(seconds)):
            self.now += 1.0
            self.dispatcher.tick()


def play(script: Callable[[Double], Coroutine[Any, Any, None]]) -> Double:
    double: list[Double] = []

    async def run() -> None:
        double.append(Double())
        await script(double[0])

    asyncio.run(run())
    return double[0]


def test_a_task_that_never_starts_is_placed_again_and_the_first_answer_counts() -> None:
    async def script(double: Double) -> None:
        double.run()
        double.pass_time(MIN_SILENCE_SECONDS)
        assert [placement for _, _, placement, _ in double.copies] == [Placement(1.0), Placement(0.0, "a")]
        await double.end(1, "second")
        assert double.withdrawn == [double.copies[0][3]]
        await double.end(0, "first, late")

    double = play(script)
    assert double.taken == [(0, "second")]
    assert [output() for output in double.outputs] == [None, None], "what was late is released"
    assert double.warnings == 1


def test_original_can_answer_before_its_copy() -> None:
    async def script(double: Double) -> None:
        double.run()
        double.pass_time(MIN_SILENCE_SECONDS)
        await double.end(0, "first")
        await double.end(1, "second, late")

    assert play(script).taken == [(0, "first")]


def test_a_copy_that_fails_leaves_it_to_the_others(caplog: pytest.LogCaptureFixture) -> None:
    async def script(double: Double) -> None:
        double.run()
        double.pass_time(MIN_SILENCE_SECONDS)
        await double.end(1, OSError("no worker could be started"))
        assert not double.taken
        await double.end(0, "first")

    with caplog.at_level(logging.INFO, "windrow"):
        assert play(script).taken == [(0, "first")]
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (logging.INFO, "task 0 sends no heartbeat: copy 1 is started"),
        (logging.INFO, "task 0: copy 1 failed (OSError), another one runs"),
    ]


def test_what_would_end_every_copy_ends_the_task() -> None:
    error = MemoryError("died again and again")

    async def script(double: Double) -> None:
        double.run()
        double.pass_time(MIN_SILENCE_SECONDS)
        await double.end(1, error)
        await double.end(0, "late")

    assert play(script).taken == [(0, error)]


def test_failure_of_the_last_copy_is_reported() -> None:
    error = OSError("gone")

    async def script(double: Double) -> None:
        double.run()
        double.pass_time(MIN_SILENCE_SECONDS)
        await double.end(0, OSError("gone"))
        await double.end(1, error)

    assert play(script).taken == [(0, error)]


def test_what_cannot_be_submitted_fails_and_never_the_tick() -> None:
    async def script(double: Double) -> None:
        double.refuses = OSError("cannot be pickled")
        with pytest.raises(OSError, match="cannot be pickled"):
            double.run()
        double.refuses = None
        double.run()
        double.refuses = ConnectionError("no answer from the control plane")
        double.pass_time(2 * MIN_SILENCE_SECONDS)
        double.refuses = OSError("cannot be submitted again")
        double.pass_time(MIN_SILENCE_SECONDS)
        # a task that waits for a core gets the error
        await double.end(0, "first")
        double.refuses = None
        double.run()
        double.run()
        double.run()
        double.refuses = error = OSError("cannot be submitted at last")
        await double.end(1, "second")
        assert [result for _, result in double.taken][:2] == ["first", "second"]
        assert double.taken[2][1] is error

    assert len(play(script).taken) == 3


@pytest.mark.parametrize("why", ["workers are being started", "nobody listened"])
def test_silence_counts_only_where_something_could_be_heard(why: str) -> None:
    async def script(double: Double) -> None:
        double.run()
        if why == "nobody listened":
            # without a core for so long
            double.now += 100.0
            double.pass_time(1)
        else:
            double.starting = True
            double.pass_time(100)
            double.starting = False
        double.pass_time(MIN_SILENCE_SECONDS - 1)
        assert len(double.copies) == 1
        double.pass_time(1)
        assert len(double.copies) == 2

    play(script)


def test_what_gives_signs_is_left_alone_and_the_cluster_is_not_asked() -> None:
    async def script(double: Double) -> None:
        double.run()
        for _ in range(100):
            double.dispatcher.note_heartbeat(0, 0)
            double.pass_time(1.0)
        assert len(double.copies) == 1
        assert double.looks == 0
        # of a task that has ended, and of none there ever was
        await double.end(0)
        double.dispatcher.note_heartbeat(0, 0)
        double.dispatcher.note_heartbeat(7, 1)

    assert play(script).warnings == 0


def test_without_cpus_no_more_run_than_there_are_cores_and_each_follows_at_once() -> None:
    async def script(double: Double) -> None:
        double.run()
        double.pass_time(MIN_SILENCE_SECONDS)
        for _ in range(4):
            double.run()
        assert [placement.cpus for _, _, placement, _ in double.copies] == [1.0, 0.0, 0.0]
        for at in range(1, 5):
            await double.end(at)
        assert len(double.taken) == 4
        assert len(double.copies) == 6
        double.nodes = [Node("a", 2, 2.0)]
        double.pass_time(1.0)
        double.run()
        assert double.copies[-1][2] == Placement(1.0)

    assert play(script).warnings == 1


def test_a_warning_waits_until_it_is_known_to_be_true_and_costs_no_answer() -> None:
    async def script(double: Double) -> None:
        double.held = ConnectionError("the control plane is being restarted")
        double.run()
        double.pass_time(MIN_SILENCE_SECONDS)
        await double.end(1, "second")
        assert double.taken == [(0, "second")]
        assert double.asked == 1
        # workers of our own were slow to start
        double.held = False
        double.pass_time(3)
        for _ in range(3):
            double.run()
        assert (double.asked, double.warnings) == (4, 0), "asked once a second at most"
        double.held = True
        double.pass_time(3)
        assert (double.asked, double.warnings) == (5, 1)

    play(script)


def test_an_answer_is_not_lost_where_another_copy_cannot_be_cancelled() -> None:
    async def script(double: Double) -> None:
        def fail(first: Any) -> None:
            raise RuntimeError("cannot be cancelled")

        double.cancel = fail
        double.run()
        double.pass_time(MIN_SILENCE_SECONDS)
        await double.end(1, "second")

    double = play(script)
    assert double.taken == [(0, "second")]
    assert [str(error) for error in double.errors] == ["cannot be cancelled"], "the caller gets the error"
