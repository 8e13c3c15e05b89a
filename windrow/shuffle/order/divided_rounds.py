"""Lays out the runs of a mixture's rounds whose steps are divided by cost, and finds the run of each row.

How many rows of a step a shard gets is known only once all windows with rows in it are placed. So rows get places by
their rank in the step, of which those of other shards leave some out, and shards close these gaps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from windrow.core.cached_properties import cached_property
from windrow.core.errors import PlanError
from windrow.shuffle.kernels.native import RunIds
from windrow.shuffle.kernels.pieces import piece_rows
from windrow.shuffle.order.mixed_steps import DividedRows
from windrow.shuffle.order.round_runs import RoundRuns
from windrow.shuffle.order.runs import RunNumbers, find_repeated
from windrow.shuffle.order.shard_assignment import ShardAssignment

Ints = NDArray[np.int64]
PLACE_BITS = 32
NO_KEY = -1


class PlacedRows(NamedTuple):
    """The rows of a window, in the order of the mixture's rows; with sequences, these."""

    rows: Ints  # the mixture's row
    shards: NDArray[np.int32]
    ranks: NDArray[np.int32]  # within the step; of copies that padding makes, the place in the batch
    is_copy: NDArray[np.bool_]
    sizes: NDArray[np.int32]  # 1, or the tokens of a sequence that lie in the window
    costs: NDArray[np.float64]
    lengths: NDArray[np.float32]

    def select(self, at: Any) -> PlacedRows:
        """Some of them."""
        return PlacedRows(*(each[at] for each in self))


@dataclass(frozen=True)
class KeyedRounds(RoundRuns):
    """The runs of rounds for the shards of one destination, where tasks get a key for each row.

    A key has the run in its upper bits, and the place within it in the lower ones; -1 for rows that no shard gets.
    """

    # (repeated, 2): the key of each row that padding repeats, and that of its copy
    copies: Ints

    @property
    def for_tasks(self) -> KeyedRounds:
        """The same without what only the coordinator needs."""
        return self


@dataclass(frozen=True)
class DividedRounds(KeyedRounds):
    """The runs of rounds, for the shards of one destination, where `Balance` divides steps source by source.

    In each round, each shard has a run for every so many steps, which can be empty. Behind these is one for each shard
    with rows that padding repeats.
    """

    # None in a task
    placed: PlacedRows | None = None

    @property
    def for_tasks(self) -> DividedRounds:
        """The same without what only the coordinator needs."""
        return replace(self, placed=None)

    @property
    def assignment(self) -> ShardAssignment:
        """How the mixture's rows are assigned to shards."""
        return self.round.assignment

    @cached_property
    def run_steps(self) -> int:
        """The steps of a run."""
        return find_run_steps(self.assignment, self.round.run_rows)

    def groups_of(self, number: int) -> tuple[int, int]:
        """Of the runs that shards have of their streams, the first one with rows in a round, and behind the last."""
        assignment = self.assignment
        first = max(number * self.round_rows, self.first_row, assignment.start_row) - assignment.start_row
        stop = min((number + 1) * self.round_rows, self.stop_row) - assignment.start_row
        if stop <= first:
            return 0, 0
        rows = assignment.step_rows * self.run_steps
        return first // rows, -(-stop // rows)

    @cached_property
    def run_counts(self) -> Ints:
        """(rounds, shards) the runs of each shard in each round."""
        groups = [self.groups_of(number) for number in range(self.first_round, self.stop_round)]
        counts = np.array([stop - first for first, stop in groups], np.int64)
        return np.repeat(counts[:, None], len(self.shards), axis=1)

    @cached_property
    def starts(self) -> Ints:
        """(rounds + 1,) the first run id of each round, and the end of the last one's."""
        pads = self.assignment.equal == "pad"
        return np.append(0, np.cumsum(self.run_counts.sum(axis=1) + pads * len(self.shards)))

    @cached_property
    def first_runs(self) -> Ints:
        """(rounds,) added to the number of a run in the stream of the first shard, gives its id."""
        groups = [self.groups_of(number)[0] for number in range(self.first_round, self.stop_round)]
        found: Ints = self.starts[:-1] - np.array(groups, np.int64)
        return found


def find_run_steps(assignment: ShardAssignment, run_rows: int) -> int:
    """The steps of a run, whose places are 32 bits."""
    most = 2**PLACE_BITS // assignment.step_rows
    if not most:
        raise PlanError(
            f"a step of {assignment.step_rows:,} rows or tokens over all shards is too large to be divided by cost in "
            "a mixture: use a smaller batch_size"
        )
    return max(1, min(most, run_rows // assignment.batch_rows))


def lay_out_rounds(
    layouts: Sequence[DividedRounds],
    divided: DividedRows,
    costs: NDArray[np.float64],
    lengths: NDArray[np.float32],
    tokens: Ints | None,
) -> tuple[tuple[DividedRounds, ...], Ints]:
    """Lay out the runs of a source's window, given its rows.

    ``layouts`` has one layout for each destination, without ``copies`` and ``placed``. With sequences, ``tokens`` are
    those of each that lie in the window.

    Returns the layouts, and (rows,) the key of each row.
    """
    layout = layouts[0]
    assignment, total = layout.assignment.of_sequences, layout.stop_row // layout.assignment.sequence_rows
    round_rows = layout.round_rows // layout.assignment.sequence_rows
    # the copies that padding makes of rows stand behind them
    taken, copy_shards, copy_places = _find_copies(assignment, divided.rows, total)
    at = np.append(np.arange(len(divided.rows)), taken)
    is_copy = np.arange(len(at)) >= len(divided.rows)
    rows = divided.rows[at]
    shards = np.append(divided.shards, copy_shards)
    rounds = rows // round_rows
    is_here = (shards >= 0) & (rounds >= layout.first_round) & (rounds < layout.stop_round)
    is_here &= rows >= layout.first_row // layout.assignment.sequence_rows
    steps, ranks = np.divmod(rows - assignment.start_row, assignment.step_rows)
    ranks[is_copy] = copy_places
    keys = _make_keys(layouts, shards, rounds, steps, ranks, is_here, is_copy)
    copies = np.stack([keys[taken], keys[is_copy]], axis=1)
    own = np.flatnonzero(is_here)
    own = own[np.argsort(rows[own], kind="stable")]
    sizes = np.ones(len(rows), np.int64) if tokens is None else tokens[at]
    # windows are held for long, so this takes no more memory than it needs
    owners, of_step, counts = (each.astype(np.int32) for each in (shards, ranks, sizes))
    placed = PlacedRows(rows, owners, of_step, is_copy, counts, costs[at], lengths[at]).select(own)
    # all layouts know all copies
    found = tuple(replace(each, copies=copies, placed=placed) for each in layouts)
    return found, keys[: len(divided.rows)]


def _find_copies(assignment: ShardAssignment, rows: Ints, total: int) -> tuple[Ints, Ints, Ints]:
    """The indices of rows that padding repeats, and the shard and the place in its batch of each copy."""
    repeated, shards, places = assignment.padding(total)
    found, is_held = find_repeated(rows, repeated)
    return found, shards[is_held], places[is_held] % assignment.batch_rows


def _make_keys(
    layouts: Sequence[DividedRounds],
    shards: Ints,
    rounds: Ints,
    steps: Ints,
    ranks: Ints,
    is_here: NDArray[np.bool_],
    is_copy: NDArray[np.bool_],
) -> Ints:
    layout = layouts[0]
    assignment = layout.assignment
    sequence_rows, run_steps = assignment.sequence_rows, layout.run_steps
    runs, within = np.divmod(steps, run_steps)
    places = np.where(is_copy, ranks, within * (assignment.step_rows // sequence_rows) + ranks)
    # by round and shard: what is added to the number of a run in the shard's stream, and the run of copies
    bases, copied = np.full((2, layout.stop_round - layout.first_round, assignment.shards), NO_KEY, np.int64)
    end = 0
    for each in layouts:
        index = np.arange(len(each.shards))
        bases[:, list(each.shards)] = end + each.first_runs[:, None] + each.run_counts * index
        copied[:, list(each.shards)] = end + (each.starts[:-1] + each.run_counts.sum(axis=1))[:, None] + index
        end += int(each.starts[-1])
    found = np.full(len(shards), NO_KEY, np.int64)
    own = np.flatnonzero(is_here)
    served = np.zeros(assignment.shards, np.bool_)
    served[[shard for each in layouts for shard in each.shards]] = True
    at = rounds[own] - layout.first_round, shards[own]
    ids = np.where(is_copy[own], copied[at], bases[at] + runs[own])
    # other rows can be repeated here
    ids = np.where(served[shards[own]], ids, end + shards[own] * (1 + runs.max(initial=0)) + runs[own])
    found[own] = (ids << PLACE_BITS) + places[own] * sequence_rows
    return found


class KeyedDestinations(RunNumbers):
    """Takes the run of each row, and the place within it, from its key; stands for `Destinations`."""

    def __init__(self, layouts: Sequence[KeyedRounds]) -> None:
        super().__init__([layout.slice_starts for layout in layouts])
        self._sequence_rows = layouts[0].round.assignment.sequence_rows
        copies = layouts[0].copies
        self._copies = copies[np.argsort(copies[:, 0], kind="stable")]

    def assign(self, keys: Ints) -> tuple[Ints | None, RunIds, NDArray[np.uint32]]:
        """As `Destinations.assign`, given the keys of rows."""
        sources = None
        if len(self._copies):
            places = keys & (2**PLACE_BITS - 1)
            within = places % self._sequence_rows
            begins, ends = (
                np.searchsorted(self._copies[:, 0], keys - within, side=side) for side in ("left", "right")
            )
            counts = np.where(keys >= 0, ends - begins, 0)
            if counts.any():
                copied = np.repeat(np.arange(len(keys)), counts)
                sources = np.append(np.arange(len(keys)), copied)
                copies = self._copies[piece_rows(begins, counts), 1]
                keys = np.append(keys, np.where(copies < 0, copies, copies + within[copied]))
        runs = keys >> PLACE_BITS
        runs[(runs < 0) | (runs > self._ends[-1])] = self._ends[-1]
        return sources, runs.astype(self._word), (keys & (2**PLACE_BITS - 1)).astype(np.uint32)
