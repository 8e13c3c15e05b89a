"""Which rows of which parent blocks make the blocks of a `RearrangedSource`; they are counted where needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from windrow.core.errors import PlanError
from windrow.core.machine import available_cores
from windrow.pipeline.exchange.parent import Parent
from windrow.pipeline.exchange.segments import Segment, cut_rows_at, equal_borders, whole_blocks

__all__ = ["Border", "EqualBlocks", "Layout", "RowSpan", "SideBySide", "Sides", "SizedBlocks", "WholeBlocks"]

Ints = NDArray[np.int64]
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
            (segments,)
            for number, parent in enumerate(parents)
            for segments in whole_blocks(number, len(parent.source.blocks.rows))
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
        return cut_rows_at(rows, [start, *np.unique(inner).tolist(), stop] if stop > start else [])


@dataclass(frozen=True)
class EqualBlocks:
    """A number of blocks of equal rows, give or take one: ``repartition(n)``."""

    number: int
    counts_rows = True

    def blocks(self, parents: Sequence[Parent]) -> list[Sides]:
        return [(segments,) for segments in self.cut(parents[0].row_counts)]

    def cut(self, rows: Ints) -> list[tuple[Segment, ...]]:
        """Return the segments of every block, given the rows of each parent block."""
        return cut_rows_at(rows, equal_borders(int(rows.sum()), self.number).tolist())


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
        rights = cut_rows_at(right, borders, parent=1)
        return list(zip(cut_rows_at(left, borders), rights, strict=True))


def _count_until(parent: Parent, rows: int) -> Ints:
    """(some first blocks,) rows of the blocks, up to the one that completes ``rows``."""
    if parent.rows_known or "row_counts" in vars(parent):
        return parent.row_counts
    counts: list[int] = []
    total = 0
    for count in _count_blocks(parent):
        if total >= rows:
            break
        counts.append(count)
        total += count
    return np.array(counts, np.int64)


def _count_blocks(parent: Parent) -> Iterator[int]:
    """Yield the rows of blocks in order; as many blocks are read ahead as there are cores."""
    addresses = iter(parent.source.addresses(range(len(parent.source.blocks.rows))))
    reader = parent.reader
    workers = available_cores()
    with ThreadPoolExecutor(workers, thread_name_prefix="windrow-count") as threads:
        while some := list(islice(addresses, workers)):
            yield from threads.map(lambda address: reader.read(address).num_rows, some)
