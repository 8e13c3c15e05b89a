"""Statistics of a connection: of the client while it is open, then the last ones, else those of the session."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from windrow.pipeline.shard.connection import Connection
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


class FakeSession:
    def __init__(self, stats: RunStats | None) -> None:
        self.stats = stats
        self.client = FakeClient()

    def run_stats(self, *, spans: bool) -> RunStats | None:
        return self.stats

    def shard_client(self, shard: int, batch_rows: int, seed: int | None) -> FakeClient:
        return self.client


class FakeConsumer:
    shard, spans = 0, None

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


def test_closing_asks_once_more(connection: Connection) -> None:
    client: Any = connection.open(8, None)
    connection.close()
    connection.close()
    assert (client.tasks, client.closed) == (1, 1)
    assert connection.run_stats(spans=True).tasks == 1
