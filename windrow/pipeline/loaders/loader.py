"""A shard as the loader of a training framework: a loop over it is an epoch, and it carries its state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from windrow.core.errors import PlanError
from windrow.pipeline.delivery.delivery import BatchIterator, check_counted


class _Shard(Protocol):
    """What the loader needs of a shard, which is above this module."""

    def iter_torch_batches(self, batch_size: int, **arguments: Any) -> BatchIterator: ...

    def steps_per_epoch(self, batch_size: int, *, drop_last: bool = ...) -> int: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: Mapping[str, Any], *, allow_appended: bool = ...) -> None: ...

    def skip_batches(self, count: int, *, batch_size: int | None = ..., **arguments: Any) -> None: ...

    def close(self) -> None: ...


class Loader:
    """The batches of a shard as an iterable with a length and a state, made by `Shard.as_loader`.

    Each loop is the shard's next epoch; after `load_state_dict`, the first loop is the rest of an epoch.

    Examples
    --------
    >>> import windrow
    >>> with windrow.range(5).repeat(2).iterator() as shard:
    ...     loader = shard.as_loader(batch_size=2)
    ...     for batch in loader:
    ...         break
    ...     loader.load_state_dict(loader.state_dict())
    ...     [batch["id"].tolist() for batch in loader]
    [[2, 3], [4]]
    """

    def __init__(self, shard: _Shard, batch_size: int, arguments: Mapping[str, Any]) -> None:
        self._shard = shard
        self.batch_size = batch_size
        self._arguments = dict(arguments)
        self._batches: BatchIterator | None = None
        self._begun = (0, 0)

    def __repr__(self) -> str:
        return f"Loader({self._shard!r}, batch_size={self.batch_size})"

    def __iter__(self) -> Iterator[Any]:
        """Begin the next epoch. An epoch of which a loop took some batches counts as consumed."""
        if self._stop() and self._place() == self._begun:
            # frameworks also begin loops of which they take nothing
            self._shard.load_state_dict(self._shard.state_dict())
        self._begun = self._place()
        self._batches = self._shard.iter_torch_batches(self.batch_size, **self._arguments)
        return self._batches

    def __len__(self) -> int:
        """Number of batches of a whole epoch.

        Raises
        ------
        TypeError
            If row counts are not known before an epoch was read; names ``count()``.
        """
        try:
            self._check_counted("the epoch has no length")
            return self._shard.steps_per_epoch(self.batch_size, drop_last=self._drop_last)
        except PlanError as error:
            raise TypeError(str(error)) from error

    def state_dict(self) -> dict[str, Any]:
        """The state of the shard behind the last batch that a loop has taken, as `Shard.state_dict`."""
        return self._shard.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from a state: the next loop is the rest of its epoch.

        Raises
        ------
        StateError
            As `Shard.load_state_dict`.
        """
        self._stop()
        self._shard.load_state_dict(state_dict)

    def skip_batches(self, count: int) -> None:
        """Skip some batches of the next loops without reading them, as `Shard.skip_batches`.

        Raises
        ------
        PlanError
            As `Shard.skip_batches`.
        """
        self._check_counted("no batches can be skipped unread")
        self._stop()
        given = {name: self._arguments.get(name) for name in ("balance", "group_by_length")}
        self._shard.skip_batches(count, batch_size=self.batch_size, drop_last=self._drop_last, **given)

    def close(self) -> None:
        """Close the shard."""
        self._shard.close()

    def _check_counted(self, outcome: str) -> None:
        check_counted(self._arguments.get("token_budget"), outcome)

    @property
    def _drop_last(self) -> bool:
        return bool(self._arguments.get("drop_last", False))

    def _place(self) -> tuple[int, int]:
        state = self._shard.state_dict()
        return state["epoch"], state["row"]

    def _stop(self) -> bool:
        """End the present loop; whether there was one."""
        batches, self._batches = self._batches, None
        if batches is not None:
            batches.close()
        return batches is not None
