"""The coordinator core without Ray: which reader it serves, when it answers, and what a restart changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from tests.pipeline.coordinator.core_host import CASE, Host, ask, make, parts, request, waits
from windrow.core.errors import PlanError
from windrow.pipeline.coordinator.core import TICK_SECONDS, CoordinatorCore
from windrow.pipeline.coordinator.driver import Driver
from windrow.pipeline.coordinator.failures import Failure
from windrow.pipeline.coordinator.requests import Ask, EpochFacts, group_by_nodes
from windrow.pipeline.plan.cursor import Place
from windrow.pipeline.plan.job import Resources
from windrow.pipeline.plan.program import Program
from windrow.pipeline.tasks.task import Task
from windrow.shuffle.order.epoch_plan import WindowCut


def test_an_open_epoch_is_prepared_and_answered_when_it_is_whole() -> None:
    host = Host()
    coordination = make(host)
    facts = coordination.open_epoch(request(0))
    assert isinstance(facts, EpochFacts)
    assert facts.user_warnings == ("mind the gap",)
    polling = coordination.poll(request(0), Place(0, 0), (0, 0), Ask())
    assert waits(polling)
    assert polling.send(True) == TICK_SECONDS, "nothing is ready"
    host.finish()
    with pytest.raises(StopIteration) as end:
        polling.send(True)
    attempt, reply = end.value.value
    assert (attempt, set(reply.outputs), reply.parts) == ("driver1-0", {0, 1}, 2)
    # what a shard has of this attempt is not sent again; of another attempt it has nothing
    assert parts(ask(coordination, request(0), Place(0, 0), (0, 0), Ask(attempt, frozenset({0})))) == {1}
    assert parts(ask(coordination, request(0), Place(0, 0), (0, 0), Ask("driver0-0", frozenset({0})))) == {
        0,
        1,
    }


def test_some_parts_are_worth_an_answer_after_a_moment() -> None:
    host = Host()
    coordination = make(host)
    coordination.open_epoch(request(0))
    polling = coordination.poll(request(0), Place(0, 0), (0, 0), Ask())
    assert waits(polling)
    held_back = host.tasks.pop()
    host.finish()
    host.tasks.append(held_back)
    assert polling.send(True) == TICK_SECONDS
    host.seconds = 0.3
    with pytest.raises(StopIteration) as end:
        polling.send(True)
    assert len(parts(end.value.value)) == 1


def test_a_poll_ends_with_nothing_after_a_bounded_time_and_for_whom_has_gone_on() -> None:
    host = Host()
    coordination = make(host)
    coordination.open_epoch(request(0))
    polling = coordination.poll(request(0), Place(0, 0), (0, 0), Ask())
    assert waits(polling)
    host.seconds = 10.0
    with pytest.raises(StopIteration) as end:
        polling.send(False)
    assert parts(end.value.value) == set()
    polling = coordination.poll(request(0), Place(0, 0), (0, 0), Ask())
    assert waits(polling)
    coordination.open_epoch(replace(request(0), number=1, node="there"))
    with pytest.raises(StopIteration) as end:
        polling.send(True)
    assert end.value.value is None


def test_the_latest_reader_of_a_shard_has_it() -> None:
    coordination = make(Host())
    coordination.open_epoch(request(0))
    coordination.open_epoch(request(0, "second"))
    refused = ask(coordination, request(0), Place(0, 0), (0, 0), Ask())
    assert isinstance(refused, Failure)
    with pytest.raises(PlanError, match="shard 0 is being iterated elsewhere"):
        refused.rethrow()
    assert not coordination.acknowledge(0, "first", Place(0, 2))
    assert not coordination.close_shard(0, "first")
    assert coordination.acknowledge(0, "second", Place(0, 2))


def test_a_reader_that_was_replaced_is_not_served_once_its_successor_has_closed() -> None:
    coordination = make(Host())
    coordination.open_epoch(request(0))
    coordination.open_epoch(request(0, "second"))
    coordination.close_shard(0, "second")
    assert isinstance(ask(coordination, request(0), Place(0, 0), (0, 0), Ask()), Failure)
    # unless it opens the epoch again
    assert isinstance(coordination.open_epoch(request(0)), EpochFacts)
    assert waits(coordination.poll(request(0), Place(0, 0), (0, 0), Ask()))
    assert isinstance(ask(coordination, request(0, "second"), Place(0, 0), (0, 0), Ask()), Failure)


def test_request_does_not_replace_the_reader_that_opened_the_epoch() -> None:
    host = Host(restarted=True)
    coordination = make(host)
    assert waits(coordination.poll(replace(request(0, "first"), since=1.0), Place(0, 0), (0, 0), Ask()))
    assert isinstance(coordination.open_epoch(replace(request(0, "second"), since=2.0)), EpochFacts)
    refused = ask(coordination, replace(request(0, "third"), since=3.0), Place(0, 0), (0, 0), Ask())
    assert isinstance(refused, Failure)
    assert "is being iterated elsewhere" in refused.message


def test_replaced_reader_cannot_return_by_continuing() -> None:
    coordination = make(Host(), replace(CASE, epochs=3))
    coordination.open_epoch(request(0))
    assert isinstance(coordination.open_epoch(request(0, epoch=1, goes_on=True)), EpochFacts)
    coordination.open_epoch(request(0, "second", epoch=1))
    late = coordination.open_epoch(request(0, epoch=2, goes_on=True))
    assert isinstance(late, Failure)
    with pytest.raises(PlanError, match="another copy of it has opened epoch 1"):
        late.rethrow()
    assert waits(coordination.poll(request(0, "second", epoch=1), Place(1, 0), (1, 0), Ask()))
    # opening the epoch again does
    assert isinstance(coordination.open_epoch(request(0, epoch=2)), EpochFacts)


def test_a_window_of_the_next_epoch_is_given_before_that_is_opened() -> None:
    host = Host()
    coordination = make(host, replace(CASE, epochs=2, prefetch_windows=1))
    for shard in (0, 1):
        coordination.open_epoch(request(shard))
    for window in (1, 2, 3):
        host.finish()
        for shard in (0, 1):
            coordination.acknowledge(shard, "first", Place(0, window))
    host.finish()
    ahead = ask(coordination, request(0), Place(0, 3), (1, 0), Ask())
    assert parts(ahead) == {0, 1}
    coordination.open_epoch(request(0, epoch=1, goes_on=True))
    assert ask(coordination, request(0), Place(0, 3), (1, 0), Ask()) is None, (
        "it asks again, as who it is now"
    )
    assert ask(coordination, request(0, epoch=1), Place(1, 0), (1, 0), Ask()) == ahead


ONE_WINDOW = replace(CASE, epochs=3, shards=1, cut=WindowCut(), prefetch_windows=1)


@pytest.mark.parametrize(
    "heard",
    [["far"], ["asked", "far"], ["far", "left"], ["left", "far"], ["left", "far", "left"]],
    ids=" ".join,
)
def test_calls_that_overtake_the_opening_of_the_next_epoch_bring_none_of_it_back(heard: list[str]) -> None:
    """Ray does not keep the order of calls of an actor like this."""
    host = Host()
    coordination = make(host, ONE_WINDOW)
    coordination.open_epoch(request(0))
    host.finish()
    coordination.acknowledge(0, "first", Place(0, 1))
    host.finish()
    assert coordination.run_stats(spans=False).windows_ready == {(1, 0): 1.0}
    opening = request(0, epoch=1, goes_on=True)
    for call in heard:
        if call == "asked":
            assert parts(ask(coordination, opening, Place(0, 1), (1, 0), Ask())) == set(range(6))
        else:
            coordination.acknowledge(0, "first", Place(1, 1) if call == "far" else Place(1, 0))
    facts = coordination.open_epoch(opening)
    assert isinstance(facts, EpochFacts)
    assert (facts.epoch, facts.total) == (1, 60)
    # what follows is prepared, and nothing of what has been read
    assert {task.work.epoch for _, task in host.tasks} <= {2}
    host.finish()
    assert coordination.run_stats(spans=False).windows_ready == {(2, 0): 1.0}


def test_an_epoch_that_was_left_before_its_opening_was_heard_is_not_prepared() -> None:
    host = Host()
    coordination = make(host, ONE_WINDOW)
    coordination.open_epoch(request(0))
    host.finish()
    coordination.acknowledge(0, "first", Place(2, 0))
    coordination.open_epoch(request(0, epoch=1, goes_on=True))
    host.finish()
    assert coordination.run_stats(spans=False).windows_ready == {(2, 0): 1.0}


def test_epoch_left_early_is_released_at_once() -> None:
    host = Host()
    coordination = make(host, replace(CASE, epochs=2, shards=1, prefetch_windows=1))
    coordination.open_epoch(request(0))
    host.finish()
    assert coordination.run_stats(spans=False).windows_ready == {(0, 0): 1.0, (0, 1): 1.0}
    assert coordination.acknowledge(0, "first", Place(1, 0))
    host.finish()
    assert coordination.run_stats(spans=False).windows_ready == {(1, 0): 1.0}


def test_what_overtakes_the_opening_of_another_reader_is_not_taken_for_its_own() -> None:
    host = Host()
    coordination = make(host, replace(CASE, epochs=2, shards=1, cut=WindowCut(), prefetch_windows=1))
    coordination.open_epoch(request(0))
    coordination.acknowledge(0, "first", Place(1, 1))
    assert isinstance(coordination.open_epoch(request(0, "second", epoch=1)), EpochFacts)
    host.finish()
    assert parts(ask(coordination, request(0, "second", epoch=1), Place(1, 0), (1, 0), Ask()))


def test_closed_clients_get_no_answer() -> None:
    host = Host()
    coordination = make(host)
    coordination.open_epoch(request(0))
    assert not coordination.close_shard(0, "first")
    assert coordination.close_shard(1, "first"), "the last one"
    assert ask(coordination, request(0), Place(0, 0), (0, 0), Ask()) is None
    # an opening that arrives late, or twice, holds nothing for a reader that has closed meanwhile
    assert isinstance(coordination.open_epoch(request(0)), Failure)
    host.finish()
    assert coordination.run_stats(spans=False).held_bytes == 0


def test_shards_are_grouped_by_node() -> None:
    assert group_by_nodes([(2, "b"), (0, "a"), (1, "b"), (3, "a")]) == ((0, 3), (1, 2))
    coordination = make(Host())
    coordination.open_epoch(replace(request(1), node="there"))
    assert coordination.destinations == ((0,), (1,))


def test_rows_of_a_shard_are_placed_while_an_unexpected_node_takes_it_over() -> None:
    class Placing(Host):
        placed: ClassVar[list[set[int]]] = []

        def submit(self, driver: Driver, task: Task, tables: Any, cached: Sequence[Any]) -> None:
            assert task.ordering is not None
            self.placed.append({shard for layout in task.ordering.layouts for shard in layout.shards})
            super().submit(driver, task, tables, cached)

    host = Placing()
    program = Program(CASE.job("threads"), 2, CASE.equal, (0, 1), part_bytes=1)
    coordination = CoordinatorCore(
        program,
        Resources("simulated", 4, 2**30, limit_covers_all=False),
        {0: "here", 1: None, 3: None},
        host,
    )
    coordination.open_epoch(request(0))
    host.finish()
    # the next window is prepared as soon as no reader holds this one
    coordination.acknowledge(0, "first", Place(0, 1))
    assert isinstance(coordination.open_epoch(replace(request(1), shard=7, node="there")), EpochFacts)
    host.finish()
    assert parts(ask(coordination, replace(request(1), shard=7), Place(0, 0), (0, 0), Ask())) == {0, 1}
    assert host.placed
    assert all(placed == {0, 1} for placed in host.placed)
