"""Statistics of a connection: of the client while it is open, then the last ones, else those of the session."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from windrow.pipeline.executors.preparation import Preparation
from windrow.pipeline.shard.connection import Connection
from windrow.pipeline.shard.epoch_runs import EpochRuns
from windrow.pipeline.shard.partial_runs import Portions
from windrow.pipeline.shard.prefetch_loop import PrefetchLoop
from windrow.pipeline.statistics.stats import RunStats


class FakeClient:
    """Counts its calls, and finishes a task at each."""

    def __init__(self) -> None:
        self.tasks = 0
        self.closed = 0

    def run_stats(self, *, spans: bool) -> RunStats:
        self.tasks += 1
        return RunStats(tasks=self.tasks)

    def close(self, report: Any) -> None:
        self.closed += 1

    def begin_prefetch(self) -> None:
        pass

    def acknowledge(self, place: Any) -> None:
        pass


class FakeFacts:
    """An epoch without windows, and the one after it."""

    epoch, first_window, windows, total = 0, 0, 0, 0

    @property
    def next_epoch(self) -> FakeFacts:
        following = FakeFacts()
        following.epoch = self.epoch + 1
        return following


class FakeSession:
    def __init__(self, stats: RunStats | None) -> None:
        self.stats = stats
        self.client = FakeClient()

    def run_stats(self, *, spans: bool) -> RunStats | None:
        return self.stats

    def shard_client(self, shard: int, batch_rows: int, seed: int | None) -> FakeClient:
        return self.client


class FakeSpans:
    lane = ""


class FakeConsumer:
    shard, spans, profiled, pace = 0, FakeSpans(), False, None

    def report(self) -> None:
        return None


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> Connection:
    found = Connection(FakeSession(RunStats(tasks=70)), FakeConsumer())  # type: ignore[arg-type]
    monkeypatch.setattr(found.record, "add_reader", lambda *_: threading.Event())
    monkeypatch.setattr(found.record, "note_stats", lambda stats: None)
    return found


def test_a_shard_that_another_process_reads_has_the_statistics_of_its_session(connection: Connection) -> None:
    assert connection.run_stats(spans=False).tasks == 70


def test_a_session_that_knows_none_gives_empty_statistics() -> None:
    connection = Connection(FakeSession(None), FakeConsumer())  # type: ignore[arg-type]
    assert connection.run_stats(spans=True) == RunStats()


def test_the_last_statistics_with_spans_stay_when_the_connection_is_closed(connection: Connection) -> None:
    client: Any = connection.open(8, None)
    assert connection.run_stats(spans=True).tasks == 1
    assert connection.run_stats(spans=False).tasks == 2
    connection.disconnect()
    assert client.closed == 1
    assert connection.run_stats(spans=False).tasks == 1


class FailingPreparation(Preparation):
    """Raises an error when it is closed for the first time."""

    def close(self) -> None:
        if not self._is_closed:
            super().close()
            raise RuntimeError("cannot be closed")


@pytest.fixture
def prefetch_loop(connection: Connection) -> PrefetchLoop:
    """The loop of an open connection, in its first of two epochs, whose preparation raises when it is closed."""
    client: Any = connection.open(8, None)
    consumer: Any = FakeConsumer()
    loop = PrefetchLoop(
        client,
        consumer,
        preparation=FailingPreparation((), "0", 1),
        seed=0,
        depth=2,
        portions=Portions(is_transformed=False, min_batches=1),
        leads_on=lambda epoch: epoch == 0,
    )
    connection._set_prefetch_loop(loop)
    return loop


def test_a_client_is_closed_though_the_prefetch_loop_raises(
    connection: Connection, prefetch_loop: PrefetchLoop
) -> None:
    client: Any = connection.open(8, None)
    with pytest.raises(RuntimeError, match="cannot be closed"):
        connection.disconnect()
    assert client.closed == 1
    assert prefetch_loop.stopped.is_set()


def test_a_prefetch_loop_ends_though_its_preparation_raises(prefetch_loop: PrefetchLoop) -> None:
    facts: Any = FakeFacts()
    prefetch_loop.start(facts, None)
    ahead = prefetch_loop._next
    assert isinstance(ahead, EpochRuns)
    # the thread has read the epoch and the next one, and waits until the consumer opens that
    assert ahead.wait_for_rows(0, 20)
    with pytest.raises(RuntimeError, match="cannot be closed"):
        prefetch_loop.stop()
    prefetch_loop.join(20)
    assert not prefetch_loop._thread.is_alive()  # type: ignore[union-attr]
    # a consumer that waits for the next epoch is told
    assert [ahead.queue.get_nowait().cancelled() for _ in range(ahead.queue.qsize())] == [True]


def test_closing_asks_once_more(connection: Connection) -> None:
    client: Any = connection.open(8, None)
    connection.close()
    connection.close()
    assert (client.tasks, client.closed) == (1, 1)
    assert connection.run_stats(spans=True).tasks == 1
