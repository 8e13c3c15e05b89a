"""One iteration over batches: its arguments, and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from windrow.core.errors import PlanError
from windrow.core.integers import as_integer
from windrow.pipeline.delivery.batch_formats import BatchRows
from windrow.pipeline.delivery.sequence_slice import Selection
from windrow.shuffle.order.balance import Balance
from windrow.shuffle.order.token_budget import TokenBudget

# of ``batch_size``
_DEFAULT_ROWS = 256

Check = Callable[[pa.Schema, Mapping[str, int | None]], None]


@dataclass(frozen=True)
class StepPart:
    """What a shard has of a step whose rows are divided by cost, by microbatch.

    ``rows`` are the rows of each microbatch that has any, and ``costs`` their sums of costs.
    """

    rows: tuple[int, ...]
    costs: tuple[float, ...]


@runtime_checkable
class BatchIterator(Protocol):
    """What ``iter_*`` and ``to_torch`` return: an iterator over batches with a length and a first step.

    Examples
    --------
    >>> import windrow
    >>> batches = windrow.range(5).iter_batches(batch_size=2)
    >>> isinstance(batches, windrow.BatchIterator), batches.start, len(batches)
    (True, 0, 3)
    """

    @property
    def start(self) -> int:
        """Number of steps of the epoch that were consumed before this iterator, as after a resume.

        It is rounded down where these steps had other batches or shards.
        """
        ...

    @property
    def part(self) -> StepPart | None:
        """With ``balance=``, what this shard has of the latest step, as a `StepPart`; else None."""
        ...

    def __iter__(self) -> Iterator[Any]: ...

    def __next__(self) -> Any: ...

    def __len__(self) -> int:
        """Number of steps of the whole epoch, those before ``start`` included.

        Raises
        ------
        TypeError
            If row counts are not known yet, as with a filter in its first epoch; names ``count()``.
        """
        ...

    def close(self) -> None:
        """Stop before the end. A state still names what follows the last batch handed out."""
        ...


@dataclass(frozen=True)
class Delivery:
    """The arguments of one ``iter_*`` call.

    ``convert`` splits a span of whole batches, given their rows, and converts each; ``check`` raises PlanError, before
    anything is read, for a schema that cannot be converted. ``background``: convert in a separate thread, which pays
    off where conversion is slow.

    ``converter_key`` identifies the batch format, for conversion in the worker threads that place runs. That
    pays off where conversion is quick and takes no memory. Runs of the next epoch are placed and converted
    before its ``iter_*`` call; they are used only if the keys are equal. None: convert on demand.

    ``finish`` completes a converted batch in the consumer's thread. ``size_of`` gives the bytes by which batches
    that wait for it are bounded, beside their number. ``selection`` is applied before ``convert`` and ``check``.
    ``balance`` divides steps among shards; where it ends them by their tokens, ``batch_rows`` is not used.
    """

    batch_rows: int
    drop_last: bool
    prefetch_batches: int
    convert: Callable[[pa.RecordBatch, BatchRows], Iterable[Any]]
    check: Check | None = None
    background: bool = False
    converter_key: Any = None
    finish: Callable[[Any], Any] | None = None
    size_of: Callable[[Any], int] = lambda _: 0
    selection: Selection = Selection()
    balance: Balance | None = None

    def __post_init__(self) -> None:
        if self.converter_key is not None:
            object.__setattr__(self, "converter_key", (self.converter_key, self.selection))
        object.__setattr__(self, "batch_rows", check_number("batch_size", self.batch_rows, 1))
        prefetch_batches = check_number("prefetch_batches", self.prefetch_batches, 0)
        object.__setattr__(self, "prefetch_batches", prefetch_batches)
        check_drop_last(self.drop_last)

    def for_part(self, part: tuple[int, int] | None) -> Delivery:
        """The same for a reader of part ``part[0]`` of the ``part[1]`` parts of each sequence; None: of any."""
        selection = self.selection.for_part(part)
        if selection == self.selection:
            return self
        key = None if self.converter_key is None else self.converter_key[0]
        return replace(self, selection=selection, converter_key=key)


def choose_batches(
    batch_size: object,
    balance: object,
    token_budget: int | TokenBudget | None,
    group_by_length: int | None,
) -> tuple[int, Balance | None]:
    """The rows of a batch, and how steps are divided; the rows are not used where tokens tell what a batch has."""
    if balance is not None and not isinstance(balance, Balance):
        raise PlanError(f"balance={balance!r} must be a windrow.Balance or None")
    if group_by_length is not None:
        if balance is None:
            raise PlanError(
                "group_by_length= needs balance=windrow.Balance(column): its column tells the length of a row"
            )
        if token_budget is not None:
            raise PlanError(
                "group_by_length= and token_budget= exclude each other: groups consist of steps of as many rows each"
            )
        balance = balance.with_groups(group_by_length)
    if token_budget is None:
        return check_number("batch_size", batch_size, 1), balance
    if balance is None:
        raise PlanError(
            "token_budget= needs balance=windrow.Balance(column): rows are divided by it, and its column tells tokens"
        )
    if batch_size != _DEFAULT_ROWS:
        raise PlanError(f"batch_size={batch_size!r} and token_budget={token_budget!r} exclude each other")
    return 1, balance.with_budget(token_budget)


def check_counted(token_budget: object, outcome: str) -> None:
    """Raise PlanError, with what follows from it, if the number of an epoch's steps is not known beforehand."""
    if token_budget is not None:
        raise PlanError(f"with token_budget=, rows are divided into steps as they are read: {outcome}")


def check_drop_last(value: object) -> None:
    """Raise PlanError if the argument ``drop_last`` is not a bool."""
    if not isinstance(value, bool):
        raise PlanError(f"drop_last={value!r} must be True or False")


def check_number(name: str, value: object, minimum: int) -> int:
    """Return an argument as an integer; raise PlanError if it is not one, or below ``minimum``."""
    number = as_integer(value)
    if number is None or not minimum <= number < 2**62:
        raise PlanError(f"{name}={value!r} must be an integer of {minimum} or more")
    return number
