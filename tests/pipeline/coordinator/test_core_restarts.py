"""The coordinator core after failures and restarts: what it learns from requests, and what it releases."""

from __future__ import annotations

import gc
import logging
import weakref
from dataclasses import replace

import pytest

from tests.pipeline.coordinator.core_host import CASE, Host, ask, make, parts, request, waits
from windrow.core.errors import SourceError
from windrow.pipeline.coordinator.failures import Failure
from windrow.pipeline.coordinator.requests import Ask, EpochFacts, WindowReply
from windrow.pipeline.plan.cursor import Place


@pytest.mark.parametrize("stale_first", [True, False])
def test_restarted_coordinator_serves_the_later_of_two_readers(
    stale_first: bool,
) -> None:
    host = Host(restarted=True)
    coordination = make(host)
    earlier, later = replace(request(0, "first"), since=1.0), replace(request(0, "second"), since=2.0)
    if stale_first:
        # a question that was made again, of a reader that has closed since
        assert waits(coordination.poll(earlier, Place(0, 0), (0, 0), Ask()))
    assert waits(coordination.poll(later, Place(0, 0), (0, 0), Ask()))
    host.finish()
    assert parts(ask(coordination, later, Place(0, 0), (0, 0), Ask())) == {0, 1}
    refused = ask(coordination, earlier, Place(0, 0), (0, 0), Ask())
    assert isinstance(refused, Failure)
    assert "is being iterated elsewhere" in refused.message
    coordination.close_shard(0, "first")
    assert parts(ask(coordination, later, Place(0, 0), (0, 0), Ask())) == {0, 1}


def test_shards_that_load_states_of_different_seeds_are_refused() -> None:
    coordination = make(Host())
    first, second = (replace(request(shard), seed=9) for shard in (0, 1))
    assert isinstance(coordination.open_epoch(first), EpochFacts)
    refused = coordination.open_epoch(replace(second, seed=5))
    assert isinstance(refused, Failure)
    assert "seed" in refused.message
    assert isinstance(coordination.open_epoch(second), EpochFacts)


def test_restarted_coordinator_accepts_epochs_in_any_order() -> None:
    host = Host(restarted=True)
    coordination = make(host, replace(CASE, epochs=2))
    latest = request(0, epoch=1, goes_on=True)
    # a question of before, made again
    assert waits(coordination.poll(request(0), Place(0, 3), (1, 0), Ask()))
    assert waits(coordination.poll(latest, Place(1, 0), (1, 0), Ask()))
    assert coordination.diagnose(0)[0].startswith("shard 0 waits at epoch 1")
    # an earlier opening, retried, whose answer is no longer awaited
    assert isinstance(coordination.open_epoch(request(0)), Failure)
    host.finish()
    assert parts(ask(coordination, latest, Place(1, 0), (1, 0), Ask())) == {0, 1}


def test_failed_request_holds_no_references() -> None:
    """Its error remembers the frames that it went through, among them that of the answer before."""
    host = Host()
    coordination = make(host)
    coordination.open_epoch(request(0))
    polling = coordination.poll(request(0), Place(0, 0), (0, 0), Ask())
    held_back = host.tasks.pop()
    host.finish()
    reference = weakref.ref(host.handles[0])
    host.handles.clear()
    assert waits(polling)
    coordination.open_epoch(request(0, "second"))
    gc.disable()
    try:
        with pytest.raises(StopIteration) as end:
            polling.send(True)
        assert isinstance(end.value.value, Failure)
        held_back[0].task_failed(Failure.capture(SourceError("the run ends, and releases")))
        del polling, end
        assert reference() is None
    finally:
        gc.enable()


def test_failed_run_restarts_with_the_next_opened_epoch() -> None:
    host = Host()
    coordination = make(host)
    for shard in (0, 1):
        coordination.open_epoch(request(shard))
    coordination.close_shard(1, "first")
    host.tasks[0][0].task_failed(Failure.capture(SourceError("the file is gone")))
    failed = ask(coordination, request(0), Place(0, 0), (0, 0), Ask())
    assert isinstance(failed, Failure)
    assert failed.message == "the file is gone"
    host.tasks.clear()
    assert isinstance(coordination.open_epoch(request(0, "second")), EpochFacts)
    assert host.drivers == 2
    host.finish()
    assert parts(ask(coordination, request(0, "second"), Place(0, 0), (0, 0), Ask())) == {0, 1}
    # nothing is held for the one that had closed before
    assert coordination.acknowledge(0, "second", Place(0, 1))
    host.finish()
    assert coordination.run_stats(spans=False).windows_ready == {(0, 1): 1.0}


def test_a_failed_run_holds_nothing_even_where_it_is_remembered() -> None:
    host = Host()
    coordination = make(host)
    coordination.open_epoch(request(0))
    driver, late = host.tasks.pop()
    host.finish()
    assert driver._buffered[0, 0].outputs
    driver.task_failed(Failure.capture(SourceError("the file is gone")))
    assert driver._buffered == {}
    host.tasks.append((driver, late))
    host.finish()
    assert driver._buffered == {}


def test_a_restarted_coordinator_learns_from_requests_where_everybody_is() -> None:
    host = Host(restarted=True)
    coordination = make(host)
    assert coordination.diagnose(0) == ("the coordinator has just started", 0.0)
    assert waits(coordination.poll(request(0), Place(0, 1), (0, 1), Ask("driver0-7", frozenset({0}))))
    host.finish()
    attempt, reply = ask(coordination, request(0), Place(0, 1), (0, 1), Ask("driver0-7", frozenset({0})))  # type: ignore[misc]
    assert isinstance(reply, WindowReply)
    assert (attempt, set(reply.outputs)) == ("driver1-1", {0, 1})


def test_a_shard_that_reconnects_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    coordination = make(Host())
    with caplog.at_level(logging.INFO, "windrow"):
        coordination.open_epoch(request(0))
        for _ in range(2):
            assert waits(coordination.poll(request(0), Place(0, 0), (0, 0), Ask()))
        assert [record.getMessage() for record in caplog.records] == [
            "a run of 2 shards starts, driver driver1"
        ]
        caplog.clear()
        coordination = make(Host(restarted=True))
        for _ in range(2):
            assert waits(coordination.poll(request(0), Place(0, 1), (0, 1), Ask("driver0-7")))
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (logging.WARNING, "the coordinator was restarted: it prepares windows again, as driver1"),
        (logging.INFO, "shard 0 reconnects at epoch 0, window 1"),
    ]


def test_retried_request_can_acknowledge_less_than_the_next_one() -> None:
    """Ray retries calls of a dead actor: what the shard acknowledged since went to the dead one."""
    host = Host(restarted=True)
    coordination = make(host)
    assert waits(coordination.poll(request(0), Place(0, 0), (0, 1), Ask()))
    host.finish()
    # only the first window is made, for nothing is prepared ahead
    assert waits(coordination.poll(request(0), Place(0, 0), (0, 1), Ask()))
    assert host.tasks == []
    assert waits(coordination.poll(request(0), Place(0, 1), (0, 1), Ask()))
    host.finish()
    assert parts(ask(coordination, request(0), Place(0, 1), (0, 1), Ask())) == {0, 1}


def test_lost_objects_are_recomputed_once() -> None:
    host = Host()
    coordination = make(host)
    for shard in range(2):
        coordination.open_epoch(request(shard))
    host.finish()
    attempt, _ = ask(coordination, request(0), Place(0, 0), (0, 0), Ask())  # type: ignore[misc]
    assert waits(coordination.poll(request(0), Place(0, 0), (0, 0), Ask(lost=attempt)))
    assert len(host.tasks) == 2
    host.finish()
    # a call that is made again, or one of another shard, changes nothing
    for shard in range(2):
        again, reply = ask(coordination, request(shard), Place(0, 0), (0, 0), Ask(lost=attempt))  # type: ignore[misc]
        assert again != attempt
        assert isinstance(reply, WindowReply)
        assert set(reply.outputs) == {0, 1}
    assert host.tasks == []
    assert coordination.run_stats(spans=False).dropped_windows == 1


def test_poll_is_not_a_heartbeat() -> None:
    """A shard fetches on its own while its consumer stalls."""
    host = Host()
    coordination = make(host)
    coordination.open_epoch(request(0))
    host.seconds = 100.0
    assert waits(coordination.poll(request(0), Place(0, 0), (0, 0), Ask()))
    assert coordination._driver is not None
    assert coordination._driver._scheduler.shards.format_heartbeat(0, host.seconds) == "100 s ago"


def test_restart_holds_nothing_for_closed_shards() -> None:
    host = Host(restarted=True)
    coordination = make(host)
    # shard 1 closed with the previous coordinator
    coordination.open_epoch(request(0))
    host.finish()
    assert coordination.run_stats(spans=False).held_bytes > 0
    assert not coordination.close_shard(0, "first")
    assert coordination.run_stats(spans=False).held_bytes == 0
    # and if it has not after all, it is served
    assert isinstance(coordination.open_epoch(request(1)), EpochFacts)
    host.finish()
    assert parts(ask(coordination, request(1), Place(0, 0), (0, 0), Ask())) == {0, 1}
