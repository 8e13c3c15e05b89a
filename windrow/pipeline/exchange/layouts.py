"""Which rows of which parent blocks make the blocks of a `RearrangedSource`: union, limit, splits, zip and mixtures.

A block is a list of segments, in one or, for zip, several groups that lie side by side. Computing them is arithmetic
on row counts, which are counted where needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain, count, islice, pairwise, zip_longest
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from windrow.core.errors import PlanError
from windrow.core.machine import available_cores
from windrow.pipeline.exchange.derived_source import Parent
from windrow.shuffle.order.epoch_plan import WindowCut, plan_epoch
from windrow.shuffle.order.keys import derive_key
from windrow.shuffle.order.permutation import block_order

Ints = NDArray[np.int64]


class Segment(NamedTuple):
    """Rows ``start`` to ``stop`` of a block of a parent; ``stop`` None: all of its rows."""

    parent: int
    block: int
    start: int = 0
    stop: int | None = None


def _cut_rows_at(rows: Ints, borders: Sequence[int], parent: int = 0) -> list[tuple[Segment, ...]]:
    """Return the rows between each two borders, given the rows of each of a parent's blocks.

    >>> _cut_rows_at(np.array([3, 4]), [0, 2, 5])[1]
    (Segment(parent=0, block=0, start=2, stop=3), Segment(parent=0, block=1, start=0, stop=2))
    """
    ends = np.cumsum(rows)
    return [tuple(_segments(rows, ends, start, stop, parent)) for start, stop in pairwise(borders)]


def _segments(rows: Ints, ends: Ints, start: int, stop: int, parent: int) -> Iterator[Segment]:
    block = int(np.searchsorted(ends, start, side="right"))
    while start < stop:
        first = int(ends[block] - rows[block])
        last = min(stop, int(ends[block]))
        if last > start:
            yield Segment(parent, block, start - first, last - first)
        start, block = last, block + 1


# the sides of a block (two for zip, else one), each with the rows that are concatenated
Sides = tuple[tuple[Segment, ...], ...]


class Layout(Protocol):
    """How blocks are made."""

    @property
    def counts_rows(self) -> bool:
        """Whether the parents' rows are counted, so that the rows of each block are known."""

    def blocks(self, parents: Sequence[Parent]) -> list[Sides]:
        """Return the sides of every block, in order."""


@dataclass(frozen=True)
class WholeBlocks:
    """All blocks of all parents: union."""

    counts_rows = False

    def blocks(self, parents: Sequence[Parent]) -> list[Sides]:
        return [
            ((Segment(number, block),),)
            for number, parent in enumerate(parents)
            for block in range(len(parent.source.blocks.rows))
        ]


@dataclass(frozen=True)
class CountedBlocks(WholeBlocks):
    """The same with the rows of each block, which are counted where they are not known: the sources of a mixture."""

    counts_rows = True

    def blocks(self, parents: Sequence[Parent]) -> list[Sides]:
        return [
            ((Segment(number, block, 0, rows),),)
            for number, parent in enumerate(parents)
            for block, rows in enumerate(parent.row_counts.tolist())
        ]


@dataclass(frozen=True)
class Border:
    """A place between rows: behind a number of rows, or behind a share of all of them, rounded down."""

    rows: int | None = None
    share: Fraction | None = None

    def place(self, total: int) -> int:
        """The rows before it, given the total."""
        rows = self.rows if self.share is None else int(total * self.share)
        return total if rows is None else min(rows, total)


@dataclass(frozen=True)
class RowSpan:
    """The rows between two borders, in the blocks that hold them: limit and splits."""

    start: Border
    # a border without rows and share is behind the last row
    stop: Border
    counts_rows = True

    def blocks(self, parents: Sequence[Parent]) -> list[Sides]:
        (parent,) = parents
        is_head = self.start.rows == 0 and self.stop.rows is not None
        rows = _count_until(parent, self.stop.rows or 0) if is_head else parent.row_counts
        return [(segments,) for segments in self.cut(rows)]

    def cut(self, rows: Ints) -> list[tuple[Segment, ...]]:
        """Return the segments of every block, given the rows of each parent block."""
        total = int(rows.sum())
        start, stop = self.start.place(total), self.stop.place(total)
        ends = np.cumsum(rows)
        inner = ends[(ends > start) & (ends < stop)]
        return _cut_rows_at(rows, [start, *np.unique(inner).tolist(), stop] if stop > start else [])


@dataclass(frozen=True)
class EqualBlocks:
    """A number of blocks of equal rows, give or take one: ``repartition(n)``."""

    number: int
    counts_rows = True

    def blocks(self, parents: Sequence[Parent]) -> list[Sides]:
        return [(segments,) for segments in self.cut(parents[0].row_counts)]

    def cut(self, rows: Ints) -> list[tuple[Segment, ...]]:
        """Return the segments of every block, given the rows of each parent block."""
        borders = np.arange(self.number + 1, dtype=np.int64) * int(rows.sum()) // self.number
        return _cut_rows_at(rows, borders.tolist())


@dataclass(frozen=True)
class SizedBlocks:
    """Blocks of equal rows and at most about a number of bytes: ``repartition(target_bytes=)``."""

    target_bytes: int
    counts_rows = True

    def blocks(self, parents: Sequence[Parent]) -> list[Sides]:
        size = int(parents[0].source.blocks.memory_bytes.sum())
        rows = int(parents[0].row_counts.sum())
        number = min(max(rows, 1), max(1, -(-size // self.target_bytes)))
        return EqualBlocks(number).blocks(parents)


@dataclass(frozen=True)
class SideBySide:
    """The rows of two parents side by side, in the blocks of the first: zip."""

    counts_rows = True

    def blocks(self, parents: Sequence[Parent]) -> list[Sides]:
        left, right = (parent.row_counts for parent in parents)
        if left.sum() != right.sum():
            raise PlanError(
                f"zip() needs datasets of equal row counts, and these have {left.sum():,} and {right.sum():,}: "
                "cut the longer one with limit()"
            )
        borders = np.append(0, np.cumsum(left)).tolist()
        rights = _cut_rows_at(right, borders, parent=1)
        return list(zip(_cut_rows_at(left, borders), rights, strict=True))


def _count_until(parent: Parent, rows: int) -> Ints:
    """(some first blocks,) rows of the blocks, up to the one that completes ``rows``."""
    if parent.rows_known or "row_counts" in vars(parent):
        return parent.row_counts
    counts: list[int] = []
    total = 0
    for block_rows in _count_blocks(parent):
        if total >= rows:
            break
        counts.append(block_rows)
        total += block_rows
    return np.array(counts, np.int64)


def _count_blocks(parent: Parent) -> Iterator[int]:
    """Yield the rows of blocks in order; as many blocks are read ahead as there are cores."""
    addresses = iter(parent.source.addresses(range(len(parent.source.blocks.rows))))
    reader = parent.reader
    workers = available_cores()
    with ThreadPoolExecutor(workers, thread_name_prefix="windrow-count") as threads:
        while some := list(islice(addresses, workers)):
            yield from threads.map(lambda address: reader.read(address).num_rows, some)


class _Placed(NamedTuple):
    """A segment, and where its middle lies among its parent's rows in the mixture, from 0 to 1."""

    middle: Fraction
    segment: Segment


@dataclass(frozen=True)
class MixedBlocks:
    """Blocks of all parents, spread so that each stretch of the mixture has the proportions of the whole.

    ``weights`` add up to 1. The blocks of each parent come in a random order, by ``seed``. With ``repeats``, they come
    again, in another order, until every parent's rows have come at least once. Without, no row comes twice: the
    mixture ends with the first parent that has no more. The last block of a parent gives only its first rows.
    """

    weights: tuple[Fraction, ...]
    seed: int
    repeats: bool
    counts_rows = True

    def blocks(self, parents: Sequence[Parent]) -> list[Sides]:
        stored = [parent.row_counts for parent in parents]
        totals = [int(rows.sum()) for rows in stored]
        for number, total in enumerate(totals):
            if not total:
                raise PlanError(f"mix(): dataset {number} has no rows: leave it out")
        sizes = [total / weight for total, weight in zip(totals, self.weights, strict=True)]
        choose = max if self.repeats else min
        wanted_rows = apportion(int(choose(sizes)), self.weights)
        taken = [choose(wanted, total) for wanted, total in zip(wanted_rows, totals, strict=True)]
        placed = [
            one
            for number, (wanted, counts) in enumerate(zip(taken, stored, strict=True))
            for one in self._place(number, wanted, counts)
        ]
        placed.sort(key=lambda one: (one.middle, one.segment.parent))
        return [((one.segment,),) for one in placed]

    def _place(self, parent: int, wanted: int, rows: NDArray[np.int64]) -> Iterator[_Placed]:
        """The segments of one parent, ``wanted`` rows in all."""
        before = 0
        for passed in count():
            order = block_order(derive_key(self.seed, "mix", passed, parent), len(rows))
            for block in order.tolist():
                taken = min(int(rows[block]), wanted - before)
                if taken:
                    middle = Fraction(2 * before + taken, 2 * wanted)
                    yield _Placed(middle, Segment(parent, block, 0, taken))
                    before += taken
            if before >= wanted:
                return


def apportion(rows: int, weights: Sequence[Fraction]) -> list[int]:
    """Divide rows by weights that add up to 1; the largest fractions are rounded up.

    >>> apportion(10, [Fraction(1, 3), Fraction(2, 3)])
    [3, 7]
    """
    exact = [rows * weight for weight in weights]
    found = [int(share) for share in exact]
    by_fraction = sorted(range(len(weights)), key=lambda at: (found[at] - exact[at], at))
    for at in by_fraction[: rows - sum(found)]:
        found[at] += 1
    return found


# how the rows of a window are cut into blocks
RowsLayout = EqualBlocks | RowSpan


@dataclass(frozen=True)
class WindowLayout:
    """The windows of all parents in turns: the first of each, then the second of each, and so on."""

    # for each parent, how its blocks in stored order are cut into windows
    cuts: tuple[WindowCut, ...]
    # None: the blocks of each window as they are
    inner: RowsLayout | None = None

    @property
    def counts_rows(self) -> bool:
        return self.inner is not None

    def blocks(self, parents: Sequence[Parent]) -> list[Sides]:
        return list(chain.from_iterable(self.windows(parents)))

    def windows(self, parents: Sequence[Parent]) -> Iterator[list[Sides]]:
        """Yield the blocks of each window."""
        each = [
            self._windows_of(number, parent, cut)
            for number, (parent, cut) in enumerate(zip(parents, self.cuts, strict=True))
        ]
        return (window for turn in zip_longest(*each) for window in turn if window is not None)

    def _windows_of(self, number: int, parent: Parent, cut: WindowCut) -> Iterator[list[Sides]]:
        starts = plan_epoch(parent.source.blocks, cut=cut, seed=None, epoch=0).starts.tolist()
        for first, stop in pairwise(starts):
            if self.inner is None:
                yield [((Segment(number, block),),) for block in range(first, stop)]
                continue
            found = self.inner.cut(parent.row_counts[first:stop])
            yield [
                (tuple(Segment(number, first + one.block, one.start, one.stop) for one in block),)
                for block in found
            ]
