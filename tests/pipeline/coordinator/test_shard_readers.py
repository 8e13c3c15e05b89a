"""A shard is served to its latest reader, also where requests arrive late or out of order."""

from __future__ import annotations

import pytest

from windrow.core.errors import PlanError
from windrow.pipeline.coordinator.requests import OpenRequest
from windrow.pipeline.coordinator.shard_readers import ShardReaders
from windrow.pipeline.plan.cursor import Cursor
from windrow.shuffle.order.batching import Batching


def _request(token: str, number: int = 0, *, since: float = 0.0, goes_on: bool = False) -> OpenRequest:
    return OpenRequest(0, "node", token, number, Cursor(number), Batching(1), goes_on, None, since)


def test_requests_of_one_reader_are_ordered_by_number_and_those_of_two_by_when_they_started() -> None:
    assert _request("a", 1, since=9).precedes(_request("a", 2))
    assert not _request("a", 2).precedes(_request("a", 2))
    assert _request("a", 7, since=1).precedes(_request("b", since=2))


def test_a_reader_stays_replaced_after_its_successor_has_closed() -> None:
    readers = ShardReaders()
    readers.open(_request("first"))
    assert readers.is_current(_request("first"))
    assert readers.is_current(_request("first", 1))
    readers.open(_request("second", since=1))
    assert not readers.close(0, "first")
    assert readers.close(0, "second")
    assert list(readers.closed_shards) == [0]
    assert not readers.is_current(_request("second", since=1))
    with pytest.raises(PlanError, match="another copy of it has opened epoch 0"):
        readers.is_current(_request("first"))
    # unless it starts again
    readers.open(_request("first"))
    assert readers.is_current(_request("first"))
    assert not readers.closed_shards


def test_after_a_restart_a_later_reader_takes_a_shard_that_was_found_by_a_poll() -> None:
    readers = ShardReaders()
    readers.open(_request("old", 3, since=1, goes_on=True))
    readers.recover(0)
    assert readers.is_current(_request("new", since=2))
    with pytest.raises(PlanError, match="elsewhere"):
        readers.is_current(_request("older", since=0.5))
    # a reader that has opened an epoch itself is known to be the latest
    readers.open(_request("old", 4, since=1))
    with pytest.raises(PlanError, match="elsewhere"):
        readers.is_current(_request("new", since=2))
