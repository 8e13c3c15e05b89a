"""union, zip, limit, repartition and the methods that split a dataset: the same rows in other blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from windrow.core.byte_sizes import parse_bytes
from windrow.core.chosen_rows import filter_rows
from windrow.core.errors import PlanError
from windrow.core.integers import check_count
from windrow.dataset.argument_checks import check_blocks, check_places, check_seed
from windrow.dataset.logical_plan import check_columns, exchange_plan, make_parent, rearranged_plan
from windrow.dataset.operations.order_methods import shuffle_plan
from windrow.dataset.readable import Readable
from windrow.pipeline.exchange.derived_source import DEFAULT_BLOCK_BYTES
from windrow.pipeline.exchange.exchange_source import ExchangePlan, OutputRows, plan_partitions
from windrow.pipeline.exchange.layouts import (
    Border,
    EqualBlocks,
    Layout,
    RowSpan,
    SideBySide,
    SizedBlocks,
    WholeBlocks,
)
from windrow.pipeline.exchange.operations import make_hash
from windrow.pipeline.tasks.key_columns import check_column
from windrow.pipeline.tasks.map_batches import MapBatches
from windrow.shuffle.order.keys import derive_key
from windrow.shuffle.order.value_hash import check_hashable, hash_values, mix_key

Self = TypeVar("Self", bound="CombineMethods")
_START, _END = Border(rows=0), Border()


@dataclass(frozen=True)
class HashSide:
    """Keeps the rows on one side of a split: the test side has those whose hash is in the first part of all hashes."""

    column: str
    share: Fraction
    seed: int
    is_test: bool

    @property
    def row_choice(self) -> str:
        """Which rows it chooses, for states."""
        return f"train_test_split {self.column} {self.share} {self.seed} {self.is_test}"

    def __call__(self, table: pa.Table) -> pa.Table:
        """Return the rows of this side."""
        if self.column not in table.column_names:
            raise PlanError(f"train_test_split(by={self.column!r}): the columns are {table.column_names}")
        key = int.from_bytes(derive_key(self.seed, "train_test_split", 0, 0)[:8], "little")
        hashes = mix_key(hash_values(table.column(self.column)), key)
        kept = (hashes < np.uint64(int(2**64 * self.share))) == self.is_test
        return filter_rows(table, pa.array(kept))


class CombineMethods(Readable):
    """Methods of a dataset that rearrange rows; only ``by=`` moves them between blocks."""

    def union(self: Self, *others: Self) -> Self:
        """Return the rows of this dataset, followed by those of others.

        Datasets have the same columns, in any order; types unify as those of files do. Blocks stay as they are.

        Raises
        ------
        PlanError
            If an argument is not a Dataset.
        SourceError
            If columns or types do not unify; the message names the column.

        Examples
        --------
        >>> import windrow
        >>> windrow.range(2).union(windrow.range(1)).take()
        [{'id': 0}, {'id': 1}, {'id': 0}]
        """
        plans = [self._plan, *(self._plan_of(other, "union") for other in others)]
        check_columns(plans, "union()")
        return type(self)(rearranged_plan(plans, WholeBlocks(), "union()"))

    def zip(self: Self, other: Self) -> Self:
        """Return the columns of this dataset and those of another one side by side, row by row.

        A name that this dataset has too gets the suffix ``"_1"``, as in Ray Data. Row counts that are not known are
        counted first.

        Raises
        ------
        PlanError
            If the argument is not a Dataset or, when rows are needed, if the row counts differ.

        Examples
        --------
        >>> import windrow
        >>> windrow.range(2).zip(windrow.from_items([{"id": 5}, {"id": 6}])).take()
        [{'id': 0, 'id_1': 5}, {'id': 1, 'id_1': 6}]
        """
        plans = [self._plan, self._plan_of(other, "zip")]
        parents = [make_parent(plan) for plan in plans]
        if all(parent.rows_known for parent in parents):
            SideBySide().blocks(parents)
        return type(self)(rearranged_plan(plans, SideBySide(), "zip()"))

    def limit(self: Self, n: int) -> Self:
        """Return the first ``n`` rows in stored order, or all if there are fewer.

        Only the blocks that hold them are read, and, where row counts are not known, counted.

        Raises
        ------
        PlanError
            If ``n`` is not an integer of 1 or more.

        Examples
        --------
        >>> import windrow
        >>> windrow.range(10).limit(2).take()
        [{'id': 0}, {'id': 1}]
        """
        rows = check_count(n, "n")
        return self._rearranged(RowSpan(_START, Border(rows=rows)), f"limit({rows})")

    def repartition(
        self: Self, n: int | None = None, *, target_bytes: int | str | None = None, by: str | None = None
    ) -> Self:
        """Return the same rows in other blocks.

        Parameters
        ----------
        n
            Number of blocks, of equal rows give or take one. The order of rows stays.
        target_bytes
            Approximate size of a block instead: an integer, or a string such as ``"64MiB"``.
        by
            A column: all rows of one value share a block, in stored order. Blocks are partitions by a stable
            hash of the value: ``n`` of them, or as many as ``target_bytes`` (``"64MiB"`` by default) makes. The
            rows are spilled once.

        Raises
        ------
        PlanError
            If no argument or both sizes are given, one is invalid, ``n`` is more than 131,072, or the column does
            not exist.

        Examples
        --------
        >>> import windrow
        >>> windrow.range(10).repartition(3).num_blocks()
        3
        >>> ds = windrow.from_items([{"x": 1}, {"x": 3}, {"x": 1}])
        >>> [row["x"] for row in ds.repartition(2, by="x").iter_rows()]
        [1, 1, 3]
        """
        if n is not None and target_bytes is not None:
            raise PlanError("repartition() has both n and target_bytes: give one of them")
        number = None if n is None else check_blocks(n)
        size = None if target_bytes is None else parse_bytes(target_bytes, "target_bytes")
        if by is not None:
            return self._hashed(number, size or DEFAULT_BLOCK_BYTES, by)
        if number is not None:
            return self._rearranged(EqualBlocks(number), f"repartition({number})")
        if size is None:
            raise PlanError("repartition() needs n, target_bytes= or by=")
        return self._rearranged(SizedBlocks(size), f"repartition(target_bytes={size})")

    def split_at_indices(self: Self, indices: Sequence[int]) -> list[Self]:
        """Split the rows, in stored order, before each of some row numbers.

        Returns
        -------
        list[Dataset]
            One more than indices; those behind the last row are empty.

        Raises
        ------
        PlanError
            If indices are negative or do not ascend.

        Examples
        --------
        >>> import windrow
        >>> [part.count() for part in windrow.range(10).split_at_indices([2, 5])]
        [2, 3, 5]
        """
        found = check_places(indices, "split_at_indices")
        return self._split_at([Border(rows=place) for place in found], f"split_at_indices({found})")

    def split_proportionately(self: Self, proportions: Sequence[float]) -> list[Self]:
        """Split the rows, in stored order, by shares of their number; a last dataset has the rest.

        Raises
        ------
        PlanError
            If proportions are not positive, or do not add up to less than 1.

        Examples
        --------
        >>> import windrow
        >>> [part.count() for part in windrow.range(10).split_proportionately([0.7, 0.2])]
        [7, 2, 1]
        """
        shares = [_fraction(share) for share in proportions]
        if not shares or any(share is None or share <= 0 for share in shares):
            raise PlanError(f"split_proportionately({proportions!r}) needs shares between 0 and 1")
        reached = list(accumulate(share for share in shares if share is not None))
        if reached[-1] >= 1:
            raise PlanError(
                f"split_proportionately({proportions!r}): the shares add up to {float(reached[-1]):g}; they must leave "
                "a rest for the last dataset, so give all but the last share"
            )
        text = ", ".join(f"{float(share):g}" for share in shares if share is not None)
        return self._split_at([Border(share=share) for share in reached], f"split_proportionately([{text}])")

    def train_test_split(
        self: Self, test_size: float, *, seed: int | None = None, by: str | None = None
    ) -> tuple[Self, Self]:
        """Split the rows into a training and a test dataset.

        Parameters
        ----------
        test_size
            Share of the rows in the test dataset, between 0 and 1, rounded up to a whole row; with ``by``,
            approximate.
        seed
            Shuffle the rows by this seed first, as `random_shuffle` does. None: the last rows are the test dataset.
        by
            A column whose values decide: a row goes to the test dataset if a stable hash of its value is below
            ``test_size``. So all rows of one value are on the same side, and stay there as data grows, in every version
            and on every platform. Here ``seed`` selects the hash. Stored order stays.

        Returns
        -------
        tuple[Dataset, Dataset]
            Training and test dataset.

        Raises
        ------
        PlanError
            If an argument is invalid, or the column does not exist.

        Examples
        --------
        >>> import windrow
        >>> train, test = windrow.range(10).train_test_split(0.25)
        >>> train.count(), [row["id"] for row in test.take()]
        (7, [7, 8, 9])
        >>> train, test = windrow.range(1000).train_test_split(0.2, by="id")
        >>> test.count()
        188
        """
        share = _fraction(test_size)
        if share is None or not 0 < share < 1:
            raise PlanError(f"test_size={test_size!r} must be a share between 0 and 1")
        number = None if seed is None else check_seed(seed)
        if by is not None:
            self._check_hashed(by, "train_test_split")
            sides = (HashSide(by, share, number or 0, is_test) for is_test in (False, True))
            call = f"train_test_split({float(share):g}, by={by!r})"
            maps = [MapBatches(side, "pyarrow", preserves_rows=False, call=call) for side in sides]
            return type(self)(self._plan.mapped(maps[0])), type(self)(self._plan.mapped(maps[1]))
        whole = self if number is None else type(self)(shuffle_plan(self._plan, number, DEFAULT_BLOCK_BYTES))
        call = f"train_test_split({float(share):g})"
        train, test = whole._split_at([Border(share=1 - share)], call)
        return train, test

    def _plan_of(self, other: object, call: str) -> Any:
        if not isinstance(other, type(self)):
            raise PlanError(f"{call}() got {type(other).__qualname__}; give it a Dataset")
        return other._plan

    def _rearranged(self: Self, layout: Layout, call: str) -> Self:
        return type(self)(rearranged_plan([self._plan], layout, call))

    def _split_at(self: Self, borders: Sequence[Border], call: str) -> list[Self]:
        spans = pairwise([_START, *borders, _END])
        return [self._rearranged(RowSpan(*span), f"{call}[{at}]") for at, span in enumerate(spans)]

    def _hashed(self: Self, number: int | None, target_bytes: int, by: str) -> Self:
        self._check_hashed(by, "repartition")
        parent = make_parent(self._plan)
        partitions = number or plan_partitions(parent, target_bytes)
        plan = ExchangePlan(partial(make_hash, by, partitions), partitions, OutputRows.ALL)
        return type(self)(exchange_plan(self._plan, parent, plan, f"repartition({partitions}, by={by!r})"))

    def _check_hashed(self, by: str, call: str) -> None:
        schema: pa.Schema | None = make_parent(self._plan).known_schema
        if schema is not None:
            check_hashable(check_column(schema, by, f"{call}(by=)"), by, f"{call}(by=)")
        elif not isinstance(by, str):
            raise PlanError(f"{call}(by={by!r}) must be the name of a column")


def _fraction(value: Any) -> Fraction | None:
    """Return the number that a user wrote, without the rounding of its binary form; None for anything else."""
    try:
        return None if isinstance(value, bool) else Fraction(repr(float(value)))
    except (TypeError, ValueError):
        return None
