"""A shard as a torch dataset of batches, for DataLoaders with any number of worker processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map

from windrow.core.errors import PlanError
from windrow.core.integers import as_integer
from windrow.pipeline.delivery.delivery import BatchIterator, check_counted, choose_batches
from windrow.pipeline.plan.cursor import Cursor
from windrow.pipeline.statistics.stats import Stats
from windrow.shuffle.order.balance import Balance

if TYPE_CHECKING:
    from windrow.pipeline.timeline.timeline import Timeline

_MAIN_SEED = -1


class _Passes(Protocol):
    def begin(self, seed: int, repetition: int, workers: int) -> int: ...


class _Shard(Protocol):
    def iter_torch_batches(self, batch_size: int, **arguments: Any) -> BatchIterator: ...

    def state_dict(self) -> dict[str, Any]: ...

    def stats(self) -> Stats: ...

    def timeline(self) -> Timeline: ...


class _Shards(Protocol):
    """What the dataset needs of `WorkerShards`, which is above this module."""

    @property
    def passes(self) -> _Passes: ...

    @property
    def opened(self) -> _Shard | None: ...

    def cursor(self, number: int) -> Cursor: ...

    def open(self, cursor: Cursor, worker: int, workers: int) -> _Shard: ...

    def state_at(self, cursor: Cursor) -> dict[str, Any]: ...

    def resume(self, number: int, state: Mapping[str, Any], *, has_ended: bool) -> Cursor: ...

    def state_after(
        self, batches: int, batch_rows: int, *, drop_last: bool, balance: Balance | None
    ) -> dict[str, Any]: ...

    def steps(self, batch_rows: int, *, drop_last: bool) -> int | None: ...

    def close(self) -> None: ...


class TorchBatch(dict[str, Any]):
    """A batch: a dict of tensors. torch's default collation, which would stack whole batches, refuses it."""


def _mark(batch: Any) -> Any:
    """The batch as `TorchBatch`, or a list of microbatches as such; what ``collate_fn`` made stays as it is."""
    if type(batch) is list:
        return [_mark(part) for part in batch]
    return TorchBatch(batch) if type(batch) is dict else batch


def _refuse_collation(*_: object, **__: object) -> NoReturn:
    raise PlanError(
        "the dataset of as_torch_dataset() delivers whole batches, which DataLoader must not collate: pass it "
        "batch_size=None, and the batch size to as_torch_dataset()"
    )


default_collate_fn_map[TorchBatch] = _refuse_collation


class TorchDataset(IterableDataset[Any]):
    """The batches of a shard, made by `Shard.as_torch_dataset` for ``DataLoader(dataset, batch_size=None)``.

    Each pass, such as one loop over a DataLoader, is the shard's next epoch. Its batches and their order are
    those of ``iter_torch_batches``, with any number of worker processes.
    """

    def __init__(
        self, shards: _Shards, batch_size: int, drop_last: bool, arguments: Mapping[str, Any]
    ) -> None:
        super().__init__()
        self._shards = shards
        self._batch_size = batch_size
        self._drop_last = drop_last
        self._arguments = dict(arguments)
        # by seed: how often this process has begun a pass
        self._begun: dict[int, int] = {}

    def __iter__(self) -> Iterator[Any]:
        """Begin a pass; in a worker process, over the worker's part."""
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        if workers > 1:
            self._check_counted(
                "workers cannot divide them. Use a DataLoader with num_workers=1 or 0, or batch_size= in place of "
                "token_budget="
            )
        seed = _MAIN_SEED if info is None else info.seed - info.id
        repetition = self._begun[seed] = self._begun.get(seed, -1) + 1
        number = self._shards.passes.begin(seed, repetition, 0 if info is None else workers)
        return _Pass(self._shards, number, worker, workers, self._batch_size, self._deliver)

    def _deliver(self, shard: _Shard) -> BatchIterator:
        return shard.iter_torch_batches(self._batch_size, drop_last=self._drop_last, **self._arguments)

    def __len__(self) -> int:
        """Number of batches of a whole epoch.

        Raises
        ------
        TypeError
            If row counts are not known before an epoch was read, or with ``token_budget``.
        """
        try:
            self._check_counted("the epoch has no length")
        except PlanError as error:
            raise TypeError(str(error)) from error
        steps = self._shards.steps(self._batch_size, drop_last=self._drop_last)
        if steps is None:
            raise TypeError("the number of batches is not known before an epoch was read")
        return steps

    def _check_counted(self, outcome: str) -> None:
        check_counted(self._arguments.get("token_budget"), outcome)

    def state_after(self, batches: int) -> dict[str, Any]:
        """Return the state of the shard after some batches of the present pass, as `Shard.state_dict` does.

        The DataLoader's workers are ahead of the loop, which alone knows how many batches it has taken. The
        state continues with any number of trainers, workers and rows in a batch.

        Parameters
        ----------
        batches
            How many batches the present loop over the DataLoader has taken.

        Raises
        ------
        PlanError
            With ``on_error="skip"`` or ``token_budget``, or after a StatefulDataLoader has resumed this epoch: use its
            own state.
        """
        self._check_counted(
            "their number does not tell a state. Use torchdata's StatefulDataLoader and its state_dict()"
        )
        count = as_integer(batches)
        if count is None or count < 0:
            raise PlanError(f"state_after({batches!r}): give the number of batches, an integer of 0 or more")
        given = (self._arguments.get(name) for name in ("balance", "token_budget", "group_by_length"))
        _, balance = choose_batches(self._batch_size, *given)
        return self._shards.state_after(count, self._batch_size, drop_last=self._drop_last, balance=balance)

    def stats(self) -> Stats:
        """Return the statistics of what this process reads; in a worker of a DataLoader, those of its own shard.

        Call it there as ``torch.utils.data.get_worker_info().dataset.stats()``, for example in ``collate_fn``. A
        worker's waits are not those of the training loop, because the loader prepares batches ahead.

        Raises
        ------
        PlanError
            If this process reads nothing: the workers of a DataLoader do, or no batch has been requested.
        """
        return self._opened("stats").stats()

    def timeline(self) -> Timeline:
        """Return the timeline of the run that this process reads from; in a worker of a DataLoader, of its own run.

        Call it there as `stats`. On threads, each worker has a run of its own, which nobody else can see.

        Raises
        ------
        PlanError
            If this process reads nothing: the workers of a DataLoader do, or no batch has been requested.
        """
        return self._opened("timeline").timeline()

    def _opened(self, method: str) -> _Shard:
        """The shard that this process reads."""
        shard = self._shards.opened
        if shard is None:
            raise PlanError(
                f"this process has read nothing: with num_workers= above 0, call {method}() in a worker, as "
                f"torch.utils.data.get_worker_info().dataset.{method}()"
            )
        return shard

    def close(self) -> None:
        """Release what this process holds for the dataset."""
        self._shards.close()


class _Pass:
    """One worker's batches of an epoch; torchdata's StatefulDataLoader saves and restores its state."""

    def __init__(
        self, shards: _Shards, number: int, worker: int, workers: int, batch_size: int, deliver: Any
    ) -> None:
        self._shards = shards
        self._number = number
        self._place = worker, workers
        self._batch_size = batch_size
        self._deliver = deliver
        self._cursor = shards.cursor(number)
        self._has_ended = False
        self._shard: _Shard | None = None
        self._batches: Any = None

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._has_ended:
            raise StopIteration
        if self._shard is None:
            # not before a state can have been loaded
            self._shard = self._shards.open(self._cursor, *self._place)
            self._batches = self._deliver(self._shard)
        batch = next(self._batches)
        return _mark(batch)

    def state_dict(self) -> dict[str, Any]:
        """The state of this worker, behind the last batch that it has made."""
        state = self._shards.state_at(self._cursor) if self._shard is None else self._shard.state_dict()
        # behind its last batch, a worker's state is at the next epoch, which this pass does not read
        return {"state": state, "has_ended": self._has_ended or state["epoch"] > self._cursor.epoch}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from a state of the same worker."""
        self._has_ended = bool(state_dict["has_ended"])
        self._cursor = self._shards.resume(self._number, state_dict["state"], has_ended=self._has_ended)
