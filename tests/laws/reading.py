"""Reads the cases of the laws: all shards of one, in threads, in turns or one after the other."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from tests.laws.cases import EOS, Case, How, Rows
from windrow.pipeline.executors.base import Executor
from windrow.pipeline.executors.threads import ThreadsExecutor
from windrow.pipeline.executors.workers import WorkerPool
from windrow.pipeline.shard.epoch import Epoch
from windrow.pipeline.shard.open_shards import open_shards
from windrow.pipeline.shard.shard import Shard

JOIN_SECONDS = 60.0


@dataclass(frozen=True)
class ScrambledThreads(ThreadsExecutor):
    """A threads executor with random order and random delays, so that work completes in unusual orders."""

    scramble: int = 0

    def pool(self, workers: int, cores: int) -> WorkerPool:
        return _ScrambledPool(workers, self.scramble)


class _ScrambledPool(WorkerPool):
    def __init__(self, workers: int, seed: int) -> None:
        super().__init__(workers, "windrow-scrambled")
        self._random = random.Random(seed)

    def submit(self, priority: tuple[int, ...], call: Callable[[], Any]) -> Any:
        delay = self._random.choice([0, 0, 0, 1e-4, 2e-3])

        def late() -> Any:
            time.sleep(delay)
            return call()

        # half of the work is urgent
        return super().submit((self._random.getrandbits(1), self._random.getrandbits(16)), late)


@dataclass
class Reading:
    """The progress of reading one shard: batches by epoch, and the epoch's reported properties."""

    shard: Shard
    case: Case
    how: How = "batches"
    epochs: list[list[Rows]] = field(default_factory=list)
    lengths: list[int | None] = field(default_factory=list)
    padded: list[int] = field(default_factory=list)

    def steps(self) -> Iterator[None]:
        """Read all epochs; yields after every batch."""
        for epoch in self.shard.iter_epochs():
            assert epoch.number == len(self.epochs)
            iterator = self.begin(epoch)
            batches: list[Rows] = []
            self.epochs.append(batches)
            self.lengths.append(_length(iterator))
            for batch in iterator:
                batches.append(take_rows(batch, None if self.how == "rows" else self.case.most_items))
                yield
            facts = iterator.epoch_reader.facts
            if facts.total is not None and not facts.assignment.ends_by_tokens:
                self.padded.append(epoch.padded_rows)

    def begin(self, epoch: Epoch) -> Any:
        case = self.case
        if self.how == "rows":
            return epoch.iter_rows()
        if self.how == "torch":
            columns = None if case.most_items is None else ["x", "half", "flag"]
            return epoch.iter_torch_batches(
                case.batch_rows, columns=columns, drop_last=case.drop_last, balance=case.balance
            )
        return epoch.iter_batches(case.batch_rows, drop_last=case.drop_last, balance=case.balance)


def take_microbatches(batch: Any) -> list[Any]:
    """The row numbers of a batch, with microbatches those of each; none if there is no batch."""
    if isinstance(batch, list):
        return [take_rows(part) for part in batch]
    return [] if batch is None else take_rows(batch)


def take_rows(batch: Any, most_items: int | None = None) -> Rows:
    """The row numbers of a batch; checks that the other columns belong to the same rows.

    With ``most_items``, lists of as many items as the row number says are cut to it.
    """
    if isinstance(batch, list):
        # of microbatches
        return [row for part in batch for row in take_rows(part, most_items)]
    if isinstance(batch["x"], int):
        assert batch["half"] == batch["x"] / 2 or batch["x"] <= 0
        return [batch["x"]]
    if isinstance(batch["x"], list):
        return take_rows({name: np.array([values]) for name, values in batch.items()})
    x, half, flag = (np.asarray(batch[name]) for name in ("x", "half", "flag"))
    if x.ndim == 2:
        assert (x.astype(np.float32) / 2 == half).all()
        assert ((np.abs(x // 8) % 2 == flag) | (x == EOS)).all()
    else:
        assert (np.abs(x) % 2 == flag).all()
        assert (np.abs(x).astype(np.float32) / 2 == half).all()
    found: Rows = x.tolist()
    for name in ("items", "mask", "longer") if most_items is not None and "items" in batch else ():
        lengths = [row + 1 if name == "longer" else min(row, most_items or 0) for row in found]
        assert [list(values) for values in batch[name]] == [list(range(length)) for length in lengths]
    return found


def _length(iterator: Any) -> int | None:
    try:
        return len(iterator)
    except TypeError:
        return None


Order = Literal["together", "alternately", "in turn"]


def read_shards(
    case: Case, executor: str | Executor, *, order: Order = "together", how: How = "batches"
) -> list[Reading]:
    """Read all epochs of all shards of a case in this process."""
    shards = open_shards(case.job(executor), case.shards, equal=case.equal)
    readings = [Reading(shard, case, how) for shard in shards]
    try:
        if order == "together":
            _read_in_threads(readings)
        elif order == "alternately":
            _read_alternately(readings, random.Random(len(case.sizes)))
        else:
            for reading in readings:
                for _ in reading.steps():
                    pass
    finally:
        for shard in shards:
            shard.close()
    return readings


def _read_in_threads(readings: list[Reading]) -> None:
    errors: list[BaseException] = []

    def read(reading: Reading) -> None:
        try:
            for _ in reading.steps():
                pass
        except BaseException as error:
            errors.append(error)

    if len(readings) == 1:
        read(readings[0])
    else:
        threads = [threading.Thread(target=read, args=(reading,), daemon=True) for reading in readings]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(JOIN_SECONDS)
        assert not any(thread.is_alive() for thread in threads) or errors, "a shard waits forever"
    if errors:
        raise errors[0]


def _read_alternately(readings: list[Reading], turns: random.Random) -> None:
    left = [reading.steps() for reading in readings]
    while left:
        steps = turns.choice(left)
        if next(steps, steps) is steps:
            left.remove(steps)


def assert_delivers(case: Case, readings: Sequence[Reading], how: How = "batches") -> None:
    """Check that every batch is the one that the laws demand, and that reported properties are right."""
    for epoch in range(case.epochs):
        if how == "rows":
            case = replace(case, balance=None)
        assigned = case.assigned(epoch, 1 if how == "rows" else None)
        got = [reading.epochs[epoch] for reading in readings]
        assert got == assigned.batches
        for reading in readings:
            length = reading.lengths[epoch]
            is_counted = case.rows_known and not (case.balance and case.balance.budget)
            assert length == len(reading.epochs[epoch]) or (length is None and not is_counted)
            if is_counted:
                assert reading.padded[epoch] == assigned.padded
    assert all(len(reading.epochs) == case.epochs for reading in readings)
