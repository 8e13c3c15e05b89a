"""The operations of an exchange: how they divide rows into partitions, and what a partition becomes.

A hash, distinct rows, a sort and a shuffle; groups are in `group_operation`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.chosen_rows import take_rows
from windrow.core.source import BlockAddress
from windrow.pipeline.exchange.derived_source import Parent
from windrow.pipeline.tasks.key_columns import check_column, find_group_starts, plain_columns, sort_rows
from windrow.shuffle.order.keys import derive_key
from windrow.shuffle.order.permutation import Permutation
from windrow.shuffle.order.value_hash import check_hashable, hash_rows, hash_values

Self = TypeVar("Self", bound="Operation")
Keyed = TypeVar("Keyed", bound="KeyedOperation")
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


@dataclass(frozen=True, eq=False)
class Operation(ABC):
    """What an exchange does; picklable, and a pure function of its fields and of the rows."""

    # which are the blocks of the result
    partitions: int

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The columns that it needs; None: all."""
        return None

    @property
    def sampled_columns(self) -> tuple[str, ...]:
        """The columns of which it needs samples before it can divide rows; none: empty."""
        return ()

    @property
    def counts_rows(self) -> bool:
        """Whether `MapTask.first_row` must be known."""
        return False

    def with_samples(self: Self, samples: pa.Table, weights: NDArray[np.float64]) -> Self:
        """The operation that knows the samples of all blocks; each stands for ``weights`` rows."""
        return self

    @abstractmethod
    def divide(self, table: pa.Table, task: MapTask) -> Divided:
        """Divide the rows of a task."""

    @abstractmethod
    def merge(self, table: pa.Table, partition: int) -> pa.Table:
        """Make a block of the result of a partition's rows, which come in the order of the tasks."""


def _divide_by_number(table: pa.Table, numbers: NDArray[np.int64], partitions: int) -> Divided:
    """Divide rows by the numbers of their partitions; those of a partition stay in order."""
    short = numbers.astype(np.uint16) if partitions <= _SHORT else numbers
    order = np.argsort(short, kind="stable")
    cuts = np.append(0, np.cumsum(np.bincount(numbers, minlength=partitions)))
    return Divided(take_rows(table, order), cuts)


def _divide_by_hash(table: pa.Table, hashes: NDArray[np.uint64], partitions: int) -> Divided:
    return _divide_by_number(table, (hashes % np.uint64(partitions)).astype(np.int64), partitions)


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
class HashOperation(Operation):
    """All rows with one value of a column share a partition."""

    column: str

    def divide(self, table: pa.Table, task: MapTask) -> Divided:
        return _divide_by_hash(table, hash_values(table.column(self.column)), self.partitions)

    def merge(self, table: pa.Table, partition: int) -> pa.Table:
        return table


def make_hash(column: str, partitions: int, parent: Parent) -> HashOperation:
    """Return the operation, or raise a PlanError if it does not fit its column."""
    call = f"repartition(by={column!r})"
    check_hashable(check_column(parent.schema, column, call), column, call)
    return HashOperation(partitions, column)


@dataclass(frozen=True)
class DistinctOperation(Operation):
    """The first of all rows that are equal in some columns; null equals null, and NaN equals NaN.

    Partitions are by a hash of these columns. A task leaves out the repetitions among its own rows before it spills
    them.
    """

    compared: tuple[str, ...]

    def divide(self, table: pa.Table, task: MapTask) -> Divided:
        first = self.merge(table, 0)
        return _divide_by_hash(
            first, hash_rows([first.column(name) for name in self.compared]), self.partitions
        )

    def merge(self, table: pa.Table, partition: int) -> pa.Table:
        keys = plain_columns(table, self.compared)
        # the sort is stable, so a group of equal rows begins with the first of them
        order = sort_rows(keys, (False,) * keys.num_columns)
        starts = find_group_starts(take_rows(keys, order))
        return table if len(starts) == table.num_rows else take_rows(table, np.sort(order[starts]))


@dataclass(frozen=True, eq=False)
class KeyedOperation(Operation):
    """An operation whose partitions are ranges of keys, chosen by samples of them."""

    keys: tuple[str, ...]
    descending: tuple[bool, ...]  # for each key
    # None: without samples, all rows are in the first partition
    ranges: KeyRanges | None = field(default=None, kw_only=True)

    @property
    def sampled_columns(self) -> tuple[str, ...]:
        return self.keys if self.partitions > 1 else ()

    def with_samples(self: Keyed, samples: pa.Table, weights: NDArray[np.float64]) -> Keyed:
        keys = plain_columns(samples, self.keys)
        return replace(self, ranges=find_ranges(keys, weights, self.descending, self.partitions))

    def divide_by_key(self, table: pa.Table, task: MapTask, *, divides_equal: bool) -> Divided:
        """Divide rows by the ranges that hold their keys; ``divides_equal`` as for `KeyRanges.divide`."""
        if self.ranges is None or not self.ranges.boundaries.num_rows:
            # partitions without boundaries stay empty
            cuts = np.full(self.partitions + 1, table.num_rows, np.int64)
            cuts[0] = 0
            return Divided(table, cuts)
        keys = plain_columns(table, self.keys)
        order, cuts = self.ranges.divide(keys, task.number, task.tasks, divides_equal=divides_equal)
        return Divided(take_rows(table, order), cuts)


@dataclass(frozen=True, eq=False)
class SortOperation(KeyedOperation):
    """A stable sort; with ``keeps_groups``, rows with equal keys share a partition."""

    keeps_groups: bool

    def divide(self, table: pa.Table, task: MapTask) -> Divided:
        return self.divide_by_key(table, task, divides_equal=not self.keeps_groups)

    def merge(self, table: pa.Table, partition: int) -> pa.Table:
        order = sort_rows(plain_columns(table, self.keys), self.descending)
        return take_rows(table, order)


@dataclass(frozen=True)
class ShuffleOperation(Operation):
    """A full shuffle: row x of ``rows`` gets the position that the permutation of ``seed`` gives it."""

    seed: int
    rows: int

    @property
    def counts_rows(self) -> bool:
        return True

    def divide(self, table: pa.Table, task: MapTask) -> Divided:
        permutation = Permutation(derive_key(self.seed, "random_shuffle", 0, 0), self.rows)
        positions = permutation.positions(task.first_row, task.first_row + table.num_rows)
        # the partition p whose borders p * rows // partitions enclose the position
        numbers = ((positions + 1) * self.partitions - 1) // max(1, self.rows)
        # the last column; it is dropped by its place, so any name will do
        positioned = table.append_column("position", pa.array(positions))
        return _divide_by_number(positioned, numbers, self.partitions)

    def merge(self, table: pa.Table, partition: int) -> pa.Table:
        positions = table.column(table.num_columns - 1).to_numpy()
        order = np.empty(table.num_rows, np.int64)
        order[positions - partition * self.rows // self.partitions] = np.arange(table.num_rows)
        return take_rows(table.select(list(range(table.num_columns - 1))), order)
