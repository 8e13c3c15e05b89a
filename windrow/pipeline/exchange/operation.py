"""The interface of an exchange's operations: how rows are divided into partitions, and what one becomes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.source import BlockAddress

__all__ = ["Divided", "MapTask", "Operation", "cuts_of", "order_by_partition"]

Self = TypeVar("Self")
# the largest number of partitions that 16 bits number, in which NumPy sorts stably by radix
_SHORT = 2**16


@dataclass(frozen=True)
class MapTask:
    """Adjacent blocks that one task divides, and the task's number among all."""

    number: int
    tasks: int
    addresses: tuple[BlockAddress, ...]
    # the rank of its first row, where the operation needs the row counts
    first_row: int = 0

    def describe(self) -> str:
        """The blocks, for errors."""
        return ", ".join(address.origin for address in self.addresses[:3])


@dataclass(frozen=True)
class Divided:
    """Rows in the order of their partitions; partition p has rows ``cuts[p]`` to ``cuts[p + 1]``."""

    table: pa.Table
    cuts: NDArray[np.int64]


class Operation(Protocol):
    """What an exchange does; picklable, and a pure function of its fields and of the rows."""

    @property
    def partitions(self) -> int:
        """The number of partitions, which are the blocks of the result."""

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The columns that it needs; None: all."""

    @property
    def sampled_columns(self) -> tuple[str, ...]:
        """The columns of which it needs samples before it can divide rows; none: empty."""

    @property
    def counts_rows(self) -> bool:
        """Whether `MapTask.first_row` must be known."""

    def with_samples(self: Self, samples: pa.Table, weights: NDArray[np.float64]) -> Self:
        """The operation that knows the samples of all blocks; each stands for ``weights`` rows."""

    def divide(self, table: pa.Table, task: MapTask) -> Divided:
        """Divide the rows of a task."""

    def merge(self, table: pa.Table, partition: int) -> pa.Table:
        """Make a block of the result of a partition's rows, which come in the order of the tasks."""


def order_by_partition(numbers: NDArray[np.int64], partitions: int) -> NDArray[np.int64]:
    """Return the stable order of rows by the numbers of their partitions."""
    short = numbers.astype(np.uint16) if partitions <= _SHORT else numbers
    return np.argsort(short, kind="stable")


def cuts_of(numbers: NDArray[np.int64], partitions: int) -> NDArray[np.int64]:
    """(partitions + 1,) where each partition begins and ends once its rows are in order."""
    return np.append(0, np.cumsum(np.bincount(numbers, minlength=partitions)))
