"""`Leg`: a part of a mixture, planned as one epoch; what its rows can be, and how long it may be."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from windrow.core.cached_properties import cached_property
from windrow.pipeline.plan.cursor import MixturePoint
from windrow.pipeline.plan.epoch_shape import Rounds
from windrow.pipeline.plan.leg_order import LegOrder
from windrow.pipeline.plan.mixed_source import NeededWindow, mean_window_rows, window_work
from windrow.pipeline.plan.mixture import Mixture
from windrow.shuffle.order.epoch_plan import EpochPlan
from windrow.shuffle.order.shard_assignment import ShardAssignment

Ints = NDArray[np.int64]

# A part of an endless mixture is planned at a time, of about this much work. It has at least some windows of each
# source, since those that are held where it ends are read again. The first batch waits for the plan of the first part;
# later ones are longer, because nothing is read ahead of where one ends.
_LEG_WORK, _LEG_WINDOWS, _LATER_LEGS = 1024, 4, 4
# Where rows are measured first, cutting steps by tokens takes up to 0.4 µs a row, and a leg holds 16 bytes for each.
_MEASURED_ROWS = 2**18
MAX_ROWS = 2**62

# (pairs,) a round, a window that it needs, and the share of the window that is held then
HeldWindows = tuple[Ints, Ints, NDArray[np.float64]]


class Leg(ABC):
    """A part of a mixture from a row on, planned as one epoch: its rows, its rounds, and the source windows it needs.

    ``row`` lies behind ``point``, with the same shares. Rows are numbered from the mixture's start, and so are rounds.
    With packing, they are sequences. Steps have ``step_rows`` rows; 0: they end by their tokens.
    Source windows are numbered in the order in which their first rows are needed.
    """

    def __init__(
        self, mixture: Mixture, point: MixturePoint, row: int, step_rows: int, order: LegOrder | None = None
    ) -> None:
        self.mixture = mixture
        self.point = point
        self.row = row
        self.order = order or LegOrder(step_rows, row)
        self._step_rows = step_rows
        self._held: dict[int, HeldWindows] = {}

    @property
    @abstractmethod
    def stop(self) -> int:
        """The row behind the last one."""

    @property
    @abstractmethod
    def is_last(self) -> bool:
        """Whether the mixture ends with this leg."""

    @property
    @abstractmethod
    def goes_on(self) -> bool:
        """Whether the mixture can go on from the point by the shares that hold there."""

    @property
    @abstractmethod
    def windows(self) -> list[NeededWindow]:
        """The source windows that hold rows of the leg."""

    @abstractmethod
    def counts_at(self, row: int) -> Ints:
        """(sources,) the rows of each source before a row of the mixture."""

    @abstractmethod
    def rows_before(self, rows: Ints) -> Ints:
        """(sources, rows) the rows of each source before some rows of the leg, or of the step in which it begins."""

    @abstractmethod
    def shared_rows(self, row: int) -> int:
        """How many of the rows that shares are shares of come before a row of the mixture."""

    @abstractmethod
    def weights_at(self, row: int) -> Ints:
        """(sources,) the weights of the phase that holds at a row, those of exhausted sources included."""

    @abstractmethod
    def begun_at(self, row: int) -> list[int]:
        """The rows of each source when the shares last changed before a row; -1 for sources that had no more."""

    @abstractmethod
    def point_at(self, row: int) -> MixturePoint:
        """What has to be known at a row to go on from there."""

    @abstractmethod
    def agrees(self, other: Leg) -> bool:
        """Whether both have the same rows from where the later one starts."""

    @abstractmethod
    def serves(self, point: MixturePoint, row: int, step_rows: int, order: LegOrder | None = None) -> bool:
        """Whether this leg, which has been planned, holds what a leg from ``row`` on would."""

    @cached_property
    def plan(self) -> EpochPlan:
        """The blocks of each source window."""
        blocks = [needed.window.blocks for needed in self.windows]
        starts = np.cumsum([0, *map(len, blocks)], dtype=np.int64)
        return EpochPlan(0, np.concatenate([np.zeros(0, np.int64), *blocks]), starts)

    @cached_property
    def rounds(self) -> Rounds:
        """The windows that each round needs."""
        size = self.mixture.round_rows
        first = np.array([needed.first_row for needed in self.windows], np.int64) // size
        last = (np.array([needed.stop_row for needed in self.windows], np.int64) - 1) // size
        return Rounds(self.row // size, -(-self.stop // size), first, last)

    def find_held(self, most_slices: int) -> HeldWindows:
        """Each round with each window that it needs, which is cut into ``most_slices`` or fewer.

        What comes in earlier slices of the window is released: all shards have passed it. In the first round, all of it
        counts: blocks are read whole before it is known which of their rows come, and tasks are expected to hold them.
        """
        # a program is sized again and again before it starts
        if most_slices not in self._held:
            self._held[most_slices] = self._find_held(most_slices)
        return self._held[most_slices]

    def _find_held(self, most_slices: int) -> HeldWindows:
        rounds = self.rounds
        counts = rounds.last + 1 - rounds.first
        windows = np.repeat(np.arange(len(self.windows)), counts)
        at = np.arange(len(windows)) - np.repeat(np.cumsum(counts) - counts, counts)
        slices = np.minimum(most_slices, counts)[windows]
        # the first round of the slice of each
        begins = -(-(at * slices // counts[windows]) * counts[windows] // slices) + rounds.first[windows]
        sources = np.array([needed.source for needed in self.windows], np.int64)
        spans = [(needed.window.start, needed.window.stop) for needed in self.windows]
        starts, stops = np.array(spans, np.int64).reshape(-1, 2)[windows].T
        # the rows of each source before each round, or before the leg
        rows = np.arange(rounds.start, rounds.stop, dtype=np.int64) * self.mixture.round_rows
        first = self.rows_before(np.maximum(rows, self.row))[sources[windows], begins - rounds.start]
        left = stops - np.clip(first, starts, stops)
        numbers = at + rounds.first[windows]
        shares = np.where(numbers == rounds.start, 1.0, left / (stops - starts))
        return numbers, windows, shares

    def round_span(self, number: int) -> tuple[int, int]:
        """The first row of the leg in a round, and the row behind the last one."""
        size = self.mixture.round_rows
        return max(number * size, self.row), min((number + 1) * size, self.stop)

    def whole_steps(self, assignment: ShardAssignment, first: int, stop: int) -> tuple[int, int]:
        """The rows of the leg from which on, and up to which, the steps are whole that have some rows."""
        start, step_rows = assignment.start_row, assignment.step_rows
        low = max(self.row, first - max(0, first - start) % step_rows)
        return low, min(self.stop, stop + -max(0, stop - start) % step_rows)

    @cached_property
    def _work_budget(self) -> float:
        each = [window_work(source) for source in self.mixture.sources if source.pass_rows]
        return float(max(_LEG_WORK, _LEG_WINDOWS * sum(each)) * (_LATER_LEGS if self.row else 1))

    @property
    def _measured_rows(self) -> int:
        """The most rows of a leg whose rows have been measured."""
        rows = max(_MEASURED_ROWS, 2 * sum(map(mean_window_rows, self.mixture.sources)))
        return rows * (_LATER_LEGS if self.row else 1)
