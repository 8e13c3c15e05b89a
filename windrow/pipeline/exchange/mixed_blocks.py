"""The layout of a mixture: blocks of several parents, in proportion to weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import count
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from windrow.core.errors import PlanError
from windrow.pipeline.exchange.layouts import Sides
from windrow.pipeline.exchange.parent import Parent
from windrow.pipeline.exchange.segments import Segment
from windrow.shuffle.order.keys import derive_key
from windrow.shuffle.order.permutation import block_order

__all__ = ["MixedBlocks", "apportion"]


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
        rows = int(max(sizes) if self.repeats else min(sizes))
        taken = apportion(rows, self.weights)
        if not self.repeats:
            taken = [min(wanted, total) for wanted, total in zip(taken, totals, strict=True)]
        else:
            taken = [max(wanted, total) for wanted, total in zip(taken, totals, strict=True)]
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
