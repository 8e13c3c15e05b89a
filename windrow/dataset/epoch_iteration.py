"""Iterates over the epochs of a job in this process, as one shard."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from itertools import pairwise
from typing import Any

import pyarrow as pa

from windrow.core.arrow_support import concat_rows
from windrow.core.missing_names import NamesMissing
from windrow.pipeline.delivery.delivery import Delivery, StepPart
from windrow.pipeline.plan.job import Job
from windrow.pipeline.shard.epoch import Epoch, EpochBatches
from windrow.pipeline.shard.open_shards import open_shards
from windrow.pipeline.shard.run_record import LatestRun

_WINDOW_BATCH_ROWS = 4096


def read_epochs(job: Job, latest: LatestRun | None = None) -> Generator[Epoch, None, None]:
    """Yield the epochs of a job; ``latest`` notes the run.

    A generator that is dropped early does not close the shard: an epoch that it has yielded may still be read, and
    releases everything once it is dropped too.
    """
    (shard,) = open_shards(job, 1, latest=latest)
    yield from shard.iter_epochs()
    shard.close()


def read_windows(job: Job) -> Generator[pa.Table, None, None]:
    """Yield the rows of each window of all epochs that has any, in the order of delivery."""
    with closing(read_epochs(job)) as epochs:
        for epoch in epochs:
            batches = epoch.iter_batches(batch_size=_WINDOW_BATCH_ROWS, batch_format="pyarrow")
            assert isinstance(batches, EpochBatches), "an epoch's batches know their windows"
            held: list[pa.Table] = []
            first = 0
            for batch in batches:
                starts = {start - first for start in batches.epoch_reader.window_starts}
                borders = sorted(at for at in starts if 0 <= at < batch.num_rows)
                for start, stop in pairwise([0, *borders, batch.num_rows]):
                    if start in starts and held:
                        yield concat_rows(held)
                        held = []
                    if stop > start:
                        held.append(batch.slice(start, stop - start))
                first += batch.num_rows
            if held:
                yield concat_rows(held)


class Passes(NamesMissing, Iterator[Any]):
    """An iterator over the batches of all epochs; releases everything when exhausted or garbage-collected.

    The constructor starts the first epoch, so that invalid delivery arguments raise in the user's
    call rather than in the loop.
    """

    _public_name = "BatchIterator"

    def __init__(self, job: Job, delivery: Delivery, latest: LatestRun | None = None) -> None:
        self._times = job.epochs
        self._delivery = delivery
        (self._shard,) = open_shards(job, 1, latest=latest)
        self._epochs = self._shard.iter_epochs()
        self._delivered = 0
        try:
            self._current = next(self._epochs)._deliver(delivery)
        except BaseException:
            self.close()
            raise

    @property
    def start(self) -> int:
        """Steps of the current epoch that were consumed before this iterator started."""
        return int(self._current.start)

    @property
    def part(self) -> StepPart | None:
        """With ``balance=``, the rows and costs of the latest batch, by microbatch; else None."""
        return self._current.part

    def __len__(self) -> int:
        if self._times is None:
            raise TypeError(
                "the pipeline repeats forever, so it has no length; each epoch of iter_epochs() has one"
            )
        return len(self._current) * self._times

    def __next__(self) -> Any:
        while True:
            try:
                item = next(self._current)
            except StopIteration:
                self._start_next_epoch()
                continue
            except BaseException:
                self.close()
                raise
            self._delivered += 1
            return item

    def close(self) -> None:
        """Stop reading and release everything."""
        self._shard.close()

    def _start_next_epoch(self) -> None:
        # If one epoch delivers nothing, none will: stop, or repeat() would loop forever.
        epoch = next(self._epochs, None) if self._delivered else None
        if epoch is None:
            self.close()
            raise StopIteration
        self._delivered = 0
        self._current = epoch._deliver(self._delivery)
