"""The operations of an exchange: how a hash, a sort and a shuffle divide rows into partitions, and what one becomes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.chosen_rows import take_rows
from windrow.core.source import BlockAddress
from windrow.pipeline.exchange.derived_source import Parent
from windrow.pipeline.tasks.key_columns import check_column, find_group_starts, plain_columns, sort_rows
from windrow.shuffle.order.keys import derive_key
from windrow.shuffle.order.permutation import Permutation
from windrow.shuffle.order.value_hash import check_hashable, hash_values

Self = TypeVar("Self")
# the largest number of partitions that 16 bits number, in which NumPy sorts stably by radix
_SHORT = 2**16
Ints = NDArray[np.int64]


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


def _order_by_partition(numbers: NDArray[np.int64], partitions: int) -> NDArray[np.int64]:
    """Return the stable order of rows by the numbers of their partitions."""
    short = numbers.astype(np.uint16) if partitions <= _SHORT else numbers
    return np.argsort(short, kind="stable")


def _cuts_of(numbers: NDArray[np.int64], partitions: int) -> NDArray[np.int64]:
    """(partitions + 1,) where each partition begins and ends once its rows are in order."""
    return np.append(0, np.cumsum(np.bincount(numbers, minlength=partitions)))


def divide_by_number(table: pa.Table, numbers: NDArray[np.int64], partitions: int) -> Divided:
    """Divide rows by the numbers of their partitions; those of a partition stay in order."""
    order = _order_by_partition(numbers, partitions)
    return Divided(take_rows(table, order), _cuts_of(numbers, partitions))


@dataclass(frozen=True, eq=False)
class KeyRanges:
    """The boundaries between partitions: a row belongs to the first partition whose boundary is not before it."""

    # (partitions - 1) rows, sorted; of equal ones, all but the first are there to divide equal rows
    boundaries: pa.Table
    descending: tuple[bool, ...]

    def divide(self, keys: pa.Table, task: int, tasks: int, *, divides_equal: bool) -> tuple[Ints, Ints]:
        """Return the order of the rows by key and the cuts between partitions, given the task of the rows.

        With ``divides_equal``, the rows that equal several boundaries are divided between their partitions
        by task. The order stays stable, since earlier tasks have earlier partitions.
        """
        rows, count = keys.num_rows, self.boundaries.num_rows
        if not count:
            return sort_rows(keys, self.descending), np.array([0, rows])
        # a stable sort puts the first copies of the boundaries before equal rows, and the last ones behind
        copies = pa.concat_tables([self.boundaries, keys, self.boundaries]).combine_chunks()
        found = sort_rows(copies, self.descending)
        is_row = (found >= count) & (found < count + rows)
        rows_before = np.cumsum(is_row)
        before = rows_before[np.flatnonzero(found < count)]
        behind = rows_before[np.flatnonzero(found >= count + rows)]
        cuts = np.where(self._holds(task, tasks), behind, before) if divides_equal else behind
        return found[is_row] - count, np.concatenate([[0], cuts, [rows]])

    def _holds(self, task: int, tasks: int) -> NDArray[np.bool_]:
        """(boundaries,) whether the rows of a task that equal a boundary are before it."""
        starts = find_group_starts(self.boundaries)
        lengths = np.diff(np.append(starts, self.boundaries.num_rows))
        within = np.arange(self.boundaries.num_rows) - np.repeat(starts, lengths)
        return within >= task * np.repeat(lengths, lengths) // tasks


def find_ranges(
    samples: pa.Table, weights: NDArray[np.float64], descending: Sequence[bool], partitions: int
) -> KeyRanges:
    """Choose boundaries so that partitions have about equally many rows; each sample stands for some rows."""
    if samples.num_rows == 0 or partitions == 1:
        return KeyRanges(samples.slice(0, 0), tuple(descending))
    order = sort_rows(samples, descending)
    reached = np.cumsum(weights[order])
    wanted = np.arange(1, partitions) * reached[-1] / partitions
    chosen = order[np.minimum(np.searchsorted(reached, wanted), len(order) - 1)]
    return KeyRanges(take_rows(samples, chosen).combine_chunks(), tuple(descending))


@dataclass(frozen=True)
class HashOperation:
    """All rows with one value of a column share a partition."""

    column: str
    partitions: int
    columns = None
    sampled_columns = ()
    counts_rows = False

    def with_samples(self, samples: pa.Table, weights: NDArray[np.float64]) -> HashOperation:
        return self

    def divide(self, table: pa.Table, task: MapTask) -> Divided:
        hashes = hash_values(table.column(self.column))
        numbers = (hashes % np.uint64(self.partitions)).astype(np.int64)
        return divide_by_number(table, numbers, self.partitions)

    def merge(self, table: pa.Table, partition: int) -> pa.Table:
        return table


def plan_hash(column: str, partitions: int) -> Callable[[Parent], HashOperation]:
    """Return the function that makes the operation, and checks its column then."""
    return partial(_make_hash, column, partitions)


def _make_hash(column: str, partitions: int, parent: Parent) -> HashOperation:
    call = f"repartition(by={column!r})"
    check_hashable(check_column(parent.schema, column, call), column, call)
    return HashOperation(column, partitions)


@dataclass(frozen=True, eq=False)
class SortOperation:
    """A stable sort; with ``keeps_groups``, rows with equal keys share a partition."""

    keys: tuple[str, ...]
    descending: tuple[bool, ...]
    partitions: int
    keeps_groups: bool = False
    ranges: KeyRanges | None = None
    columns = None
    counts_rows = False

    @property
    def sampled_columns(self) -> tuple[str, ...]:
        return self.keys if self.partitions > 1 else ()

    def with_samples(self, samples: pa.Table, weights: NDArray[np.float64]) -> SortOperation:
        keys = plain_columns(samples, self.keys)
        return replace(self, ranges=find_ranges(keys, weights, self.descending, self.partitions))

    def divide(self, table: pa.Table, task: MapTask) -> Divided:
        keys = plain_columns(table, self.keys)
        if self.ranges is None or not self.ranges.boundaries.num_rows:
            # partitions without boundaries stay empty
            cuts = np.full(self.partitions + 1, table.num_rows, np.int64)
            cuts[0] = 0
            return Divided(table, cuts)
        order, cuts = self.ranges.divide(keys, task.number, task.tasks, divides_equal=not self.keeps_groups)
        return Divided(take_rows(table, order), cuts)

    def merge(self, table: pa.Table, partition: int) -> pa.Table:
        order = sort_rows(plain_columns(table, self.keys), self.descending)
        return take_rows(table, order)


@dataclass(frozen=True)
class ShuffleOperation:
    """A full shuffle: row x of ``rows`` gets the position that the permutation of ``seed`` gives it."""

    seed: int
    rows: int
    partitions: int
    columns = None
    sampled_columns = ()
    counts_rows = True

    def with_samples(self, samples: pa.Table, weights: NDArray[np.float64]) -> ShuffleOperation:
        return self

    def divide(self, table: pa.Table, task: MapTask) -> Divided:
        permutation = Permutation(derive_key(self.seed, "random_shuffle", 0, 0), self.rows)
        positions = permutation.positions(task.first_row, task.first_row + table.num_rows)
        # the partition p whose borders p * rows // partitions enclose the position
        numbers = ((positions + 1) * self.partitions - 1) // max(1, self.rows)
        # the last column; it is dropped by its place, so any name will do
        return divide_by_number(
            table.append_column("position", pa.array(positions)), numbers, self.partitions
        )

    def merge(self, table: pa.Table, partition: int) -> pa.Table:
        positions = table.column(table.num_columns - 1).to_numpy()
        order = np.empty(table.num_rows, np.int64)
        order[positions - partition * self.rows // self.partitions] = np.arange(table.num_rows)
        return take_rows(table.select(list(range(table.num_columns - 1))), order)
