"""Which epochs divide their steps by cost, and what is known of the rows by which they do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from windrow.pipeline.coordinator.run_measurements import BlockRowCounts
from windrow.pipeline.plan.cursor import Cursor
from windrow.pipeline.plan.epoch_shape import EpochShape
from windrow.pipeline.plan.window_places import WindowPlaces
from windrow.shuffle.order.balance import Balance
from windrow.shuffle.order.numbered_rounds import NumberedRound

# being read or prefetched, or still read by a slow shard
_KEPT_EPOCHS = 8


class _Figures(NamedTuple):
    """Sums over steps."""

    imbalance: float
    steps: int
    # of their rows, and if each batch, or microbatch, is padded to its longest row
    length: float
    padded_length: float


class BalancedEpochs:
    """The `Balance` of each epoch that a shard has opened; others are expected to have the latest one.

    ``measures_rows``: whether rows are measured for it. With packing, the lengths of documents are known anyway.
    """

    def __init__(self, rows: BlockRowCounts, *, measures_rows: bool) -> None:
        self._rows = rows
        self._measures_rows = measures_rows
        self._opened: dict[int, Balance | None] = {}
        self._latest: Balance | None = None
        # by epoch and window, where steps end by their tokens
        self._left_out: dict[tuple[int, int], int] = {}
        # by epoch and window, of the steps that end in it
        self._figures: dict[int, dict[int, _Figures]] = {}

    def note(self, epoch: int, window: int, places: WindowPlaces | NumberedRound) -> None:
        """Note how uneven the steps are that end in a window, or round, and how many of its rows no shard gets."""
        if places.left_out:
            self._left_out[epoch, window] = places.left_out
        self.note_steps(epoch, window, places.imbalances, places.padded_lengths)

    def note_rounds(self, epoch: int, rounds: Mapping[int, NumberedRound]) -> None:
        """Note the rounds that a source's window has rows in, each of them once."""
        known = self._figures.get(epoch, {})
        for number in [number for number in rounds if number not in known]:
            self.note(epoch, number, rounds[number])

    def note_steps(
        self, epoch: int, window: int, imbalances: Sequence[float], padded_lengths: tuple[float, float]
    ) -> None:
        """Note how uneven the steps are that end in a window, or in a mixture's round."""
        self._figures.setdefault(epoch, {})[window] = _Figures(
            sum(imbalances), len(imbalances), *padded_lengths
        )

    @property
    def left_out_rows(self) -> int:
        """Rows that no shard gets, of the windows so far whose steps end by their tokens."""
        return sum(self._left_out.values())

    @property
    def imbalance(self) -> dict[int, float]:
        """By epoch, the mean over its steps of the most expensive shard's cost over the mean of all."""
        return {epoch: sums.imbalance / sums.steps for epoch, sums in self._sums().items() if sums.steps}

    @property
    def padding(self) -> dict[int, float]:
        """By epoch, the share of padding in the batches of its steps, if each is padded to its longest row."""
        sums = self._sums()
        return {
            epoch: 1 - each.length / each.padded_length for epoch, each in sums.items() if each.padded_length
        }

    def _sums(self) -> dict[int, _Figures]:
        return {
            epoch: _Figures(*map(sum, zip(*windows.values(), strict=True)))
            for epoch, windows in self._figures.items()
        }

    def open(self, cursor: Cursor, balance: Balance | None, first_window: int) -> tuple[int, ...]:
        """A shard opens an epoch at a cursor; returns the epochs whose shape changes with that.

        ``first_window`` is the one from which on the epoch's rows have been counted and measured so far. What comes
        before it is divided without costs, so that it is planned again where a shard needs it.
        """
        changes = balance != self._latest and self._measures_rows
        is_earlier = balance is not None and cursor.window < first_window
        self._latest = self._opened[cursor.epoch] = balance
        for epoch in [epoch for epoch in self._opened if epoch < cursor.epoch - _KEPT_EPOCHS]:
            del self._opened[epoch]
            self._figures.pop(epoch, None)
        return (cursor.epoch, cursor.epoch + 1) if changes or is_earlier else ()

    def column(self, epoch: int) -> str | None:
        """The column that the rows of an epoch are measured by; None: they are not."""
        balance = self._opened.get(epoch, self._latest)
        return None if balance is None or not self._measures_rows else balance.column

    def measures(self, epoch: int) -> list[NDArray[np.float32] | None] | None:
        """What the rows of each block measure, None until measured; None: they are not."""
        column = self.column(epoch)
        return None if column is None else self._rows.measures(column, epoch)

    def has_measured(self, epoch: int, blocks: Sequence[int]) -> bool:
        """Whether all is known of some blocks that the epoch divides its steps by."""
        measures = self.measures(epoch)
        return measures is None or all(measures[block] is not None for block in blocks)

    def shape(self, epoch: int) -> EpochShape:
        """The epoch as the scheduler sees it, with what is known of its rows so far."""
        balance = self._opened.get(epoch, self._latest)
        return self._rows.shape(epoch, self.measures(epoch), None if balance is None else balance.budget)
