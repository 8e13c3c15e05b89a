"""All epochs of a chain, read one after the other by this process."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

from windrow.pipeline.delivery.iteration_methods import Batches, Delivery
from windrow.pipeline.plan.job import Job
from windrow.pipeline.shard.epoch import Epoch
from windrow.pipeline.shard.finalizers import in_background
from windrow.pipeline.shard.shard import open_shards

__all__ = ["Passes", "read_epochs"]


def read_epochs(job: Job) -> Generator[Epoch, None, None]:
    """Yield the epochs of a job, as one shard."""
    (shard,) = open_shards(job, 1, equal=False, locality_hints=None)
    try:
        yield from shard.iter_epochs()
    except BaseException:
        # a generator that is dropped gets here from a finalizer
        in_background(shard.close)
        raise
    shard.close()


class Passes(Iterator[Any]):
    """An iterator over all epochs in turn; everything is released when it ends or is dropped.

    Parameters
    ----------
    job
        What to read.
    delivery
        How epochs are handed out; the first one is begun at once, so that what cannot
        be delivered is refused where it is asked for.
    """

    def __init__(self, job: Job, delivery: Delivery) -> None:
        self._times = job.epochs
        self._delivery = delivery
        (self._shard,) = open_shards(job, 1, equal=False, locality_hints=None)
        self._epochs = self._shard.iter_epochs()
        self._delivered = 0
        try:
            self._current = self._begin(next(self._epochs))
        except BaseException:
            self.close()
            raise

    @property
    def start(self) -> int:
        """Steps of the current epoch that had been consumed before."""
        return int(self._current.start)

    def __len__(self) -> int:
        if self._times is None:
            raise TypeError("the chain repeats for ever, so it has no length; iter_epochs() has one an epoch")
        return len(self._current) * self._times

    def __next__(self) -> Any:
        while True:
            try:
                item = next(self._current)
            except StopIteration:
                self._begin_next()
                continue
            except BaseException:
                self.close()
                raise
            self._delivered += 1
            return item

    def close(self) -> None:
        """Stop reading and release everything."""
        self._shard.close()

    def _begin_next(self) -> None:
        # An epoch that delivers nothing is followed by others like it, perhaps for ever.
        epoch = next(self._epochs, None) if self._delivered else None
        if epoch is None:
            self.close()
            raise StopIteration
        self._delivered = 0
        self._current = self._begin(epoch)

    def _begin(self, epoch: Epoch) -> Batches:
        return epoch._deliver(self._delivery)
