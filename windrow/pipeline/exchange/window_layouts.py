"""The layout of a source that states its windows: those of its parents, each with its rows in other blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise, zip_longest
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from windrow.pipeline.exchange.layouts import Sides
from windrow.pipeline.exchange.parent import Parent
from windrow.pipeline.exchange.segments import Segment
from windrow.shuffle.order.epoch_plan import WindowCut, plan_epoch

__all__ = ["RowsLayout", "WindowLayout"]


class RowsLayout(Protocol):
    """How the rows of a window are cut into blocks."""

    def cut(self, rows: NDArray[np.int64]) -> list[tuple[Segment, ...]]:
        """Return the segments of every block, given the rows of each block of the window."""


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
