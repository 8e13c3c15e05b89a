"""A change of shares that one shard misses, or discards: who hears of it, and when."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import windrow
from windrow import StateError
from windrow.pipeline.delivery.delivery import BatchIterator
from windrow.pipeline.shard import run_reader


def read_steps(batches: Iterator[Any], count: int, pause: float = 0.0) -> None:
    for _ in range(count):
        next(batches)
        time.sleep(pause)


def large_rounds() -> windrow.DatasetPipeline:
    """A mixture of which each shard has prefetched all rows that a test reads."""
    sources = {
        name: windrow.range(2_000).repeat(1).random_shuffle_each_window(seed=seed)
        for seed, name in enumerate(("web", "books"))
    }
    return windrow.mixture(sources, {"web": 1, "books": 1}, seed=7).options(progress=False)


def change_on_one_shard(opened: ExitStack, batch_size: int) -> list[BatchIterator]:
    """Two replicas of each of two shards behind two batches and behind one; those of the first change shares."""
    shards = large_rounds().options(executor="threads").split(2, replicas=2)
    readers = [opened.enter_context(each) for replicas in shards for each in replicas]
    iterators = [each.iter_batches(batch_size=batch_size) for each in readers]
    for each in iterators:
        next(each)
    for shard in readers[:2]:
        shard.set_shares({"web": 1, "books": 9})
    for own in iterators[:2]:
        next(own)
    return iterators


@pytest.mark.parametrize("executor", ["threads", "ray"])
@pytest.mark.ray_at_night
def test_a_change_of_shares_that_is_missed_ends_what_has_been_prefetched(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, executor: str
) -> None:
    """No shard asks for another round before it has read these rows."""
    monkeypatch.setattr(run_reader, "_HEARTBEAT_SECONDS", 0.0)
    if executor == "ray":
        request.getfixturevalue("ray_local")
    with ExitStack() as opened:
        left, right = map(opened.enter_context, large_rounds().options(executor=executor).split(2))
        iterators = [shard.iter_batches(batch_size=6) for shard in (left, right)]
        for each in iterators:
            next(each)
        left.set_shares({"web": 1, "books": 9})
        next(iterators[0])
        for each in reversed(iterators):
            with pytest.raises(
                StateError, match=r"shard 1 .* set_shares\(\) that others called at row 12, so"
            ):
                # on Ray, the answer to a heartbeat is seen with the next one
                read_steps(each, 100, pause=0.05 if executor == "ray" else 0.0)


def test_replicas_hear_of_a_change_of_shares_that_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_reader, "_HEARTBEAT_SECONDS", 0.0)
    with ExitStack() as opened:
        iterators = change_on_one_shard(opened, batch_size=6)
        for each in (*iterators[2:], *iterators[:2]):
            with pytest.raises(StateError, match="called at row 12, so"):
                read_steps(each, 100)


def test_a_shard_that_goes_back_has_not_missed_what_it_discarded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_reader, "_HEARTBEAT_SECONDS", 0.0)
    shards = large_rounds().options(executor="threads").split(2)
    with ExitStack() as opened:
        for shard in shards:
            opened.enter_context(shard)

        def read(steps: int) -> list[list[int]]:
            iterators = [shard.iter_batches(batch_size=6) for shard in shards]
            return [next(each)["id"].tolist() for _ in range(steps) for each in iterators]

        read(3)
        state = shards[0].state_dict()
        expected = read(10)
        for shard in shards:
            shard.load_state_dict(state)
        read(5)
        for shard in shards:
            shard.set_shares({"web": 1, "books": 9})
        read(3)
        # one after the other, as ranks do that do not wait for each other: the run goes on
        iterators, found = [], []
        for shard in shards:
            shard.load_state_dict(state)
            iterators.append(shard.iter_batches(batch_size=6))
            found.append(next(iterators[-1])["id"].tolist())
        found += [next(each)["id"].tolist() for _ in range(9) for each in iterators]
        assert found == expected
        for each in iterators:
            each.close()
        # with a change at a row that was passed before
        for shard in shards:
            shard.load_state_dict(state)
            shard.set_shares({"web": 9, "books": 1})
            # what a heartbeat tells that comes before the first batch
            assert shard._consumer.totals.stats().place is None
        assert read(10) != expected


def test_every_replica_hears_of_it_at_the_end() -> None:
    """Each by itself, before the others of its shard come to the end."""
    with ExitStack() as opened:
        iterators = change_on_one_shard(opened, batch_size=1_900)
        for each in iterators[2:]:
            with pytest.raises(StateError, match="called at row 3,800, so"):
                list(each)


def test_an_end_that_a_shard_comes_to_without_a_change_of_shares_is_an_error() -> None:
    """However little is left to read: there may be no other call to learn of it."""
    left, right = large_rounds().options(executor="threads").split(2)
    with left, right:
        iterators = [shard.iter_batches(batch_size=1_900) for shard in (left, right)]
        for each in iterators:
            next(each)
        left.set_shares({"web": 1, "books": 9})
        list(iterators[0])
        with pytest.raises(StateError, match="called at row 3,800, so"):
            list(iterators[1])
