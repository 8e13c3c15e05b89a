"""Lays out the runs of a mixture's rounds in which steps are divided by the costs of all their rows.

What all rows measure is known before any is placed. So a round is divided as a window of an epoch is, and its rows are
numbered run by run. A source's window has rows in several rounds, and gets a key for each: its run in these, and its
place there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from windrow.core.cached_properties import cached_property
from windrow.shuffle.order.divided_rounds import NO_KEY, PLACE_BITS, KeyedRounds
from windrow.shuffle.order.round_runs import RoundRuns
from windrow.shuffle.order.step_rows import StepRows
from windrow.shuffle.order.step_runs import StepDestinations, StepRuns, lay_out_steps

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class NumberedRound:
    """A round whose rows are numbered: its layouts by destination, and (rows,) the number of each of its rows.

    The rest tells of the steps that end in it what `WindowPlaces` tells of those of a window.
    """

    first_row: int
    layouts: tuple[StepRuns, ...]
    numbers: NDArray[np.uint32]
    imbalances: tuple[float, ...]
    padded_lengths: tuple[float, float]
    left_out: int

    @cached_property
    def destinations(self) -> StepDestinations:
        """What finds the run of a row by its number."""
        return StepDestinations(self.layouts)

    @cached_property
    def ends(self) -> Ints:
        """(destinations + 1,) where the runs of each destination begin, and where the last one's end."""
        return np.append(0, np.cumsum(self.counts))

    @cached_property
    def counts(self) -> Ints:
        """(destinations,) the runs of each destination."""
        return np.array([layout.slice_starts[-1] for layout in self.layouts], np.int64)


def number_round(
    divided: StepRows, first_row: int, destinations: Sequence[tuple[int, ...]], run_rows: int
) -> NumberedRound:
    """Lay out the runs of a round that begins at ``first_row``, given how its rows are divided."""
    layouts, numbers = lay_out_steps(divided, destinations=destinations, run_rows=run_rows, slices=1)
    return NumberedRound(
        first_row, layouts, numbers, divided.imbalances, divided.padded_lengths, divided.left_out
    )


@dataclass(frozen=True)
class NumberedRounds(KeyedRounds):
    """The runs of the rounds that a source's window has rows in, for the shards of one destination."""

    run_starts: Ints  # (rounds + 1,)
    # of the same rounds; None in a task
    layouts: tuple[StepRuns, ...] | None = None

    @property
    def for_tasks(self) -> NumberedRounds:
        """The same without what only the coordinator needs."""
        return replace(self, layouts=None)

    @property
    def starts(self) -> Ints:
        """(rounds + 1,) the first run id of each round, and the end of the last one's."""
        return self.run_starts

    def steps(self, number: int) -> StepRuns:
        """The runs of a round, by steps."""
        assert self.layouts is not None, "a task does not know the runs of shards"
        return self.layouts[number - self.first_round]


def lay_out_window(
    layouts: Sequence[RoundRuns], rounds: Sequence[NumberedRound], rows: Ints
) -> tuple[tuple[NumberedRounds, ...], Ints]:
    """Lay out the runs of a source's window.

    Parameters
    ----------
    layouts
        One for each destination, as without costs.
    rounds
        Those from ``first_round`` to ``stop_round`` of the layouts.
    rows
        (rows,) the mixture's row of each row of the window; -1 for those that do not come.

    Returns
    -------
    layouts, keys
        The layouts, and (rows,) the key of each row.
    """
    counts = np.stack([each.counts for each in rounds])
    # by destination, where each round's runs begin among those of the window
    starts = [np.append(0, np.cumsum(of_destination)) for of_destination in counts.T]
    totals = np.append(0, np.cumsum([each[-1] for each in starts]))
    nowhere = int(totals[-1])
    keys, copies = np.full(len(rows), NO_KEY, np.int64), [np.zeros((0, 2), np.int64)]
    layout = layouts[0]
    order = np.argsort(rows, kind="stable")
    borders = [each.first_row for each in rounds]
    borders.append(rounds[-1].first_row + len(rounds[-1].numbers))
    cuts = np.searchsorted(rows[order], np.maximum(borders, 0)).tolist()
    for at, each in enumerate(rounds):
        own = order[cuts[at] : cuts[at + 1]]
        if not len(own):
            continue
        sources, found, places = each.destinations.assign(each.numbers[rows[own] - each.first_row])
        destinations = np.searchsorted(each.ends, found, side="right") - 1
        # rows that no shard gets are behind all runs
        is_held = destinations < len(layouts)
        shifts = np.array([total + start[at] for total, start in zip(totals, starts, strict=False)])
        shifts = np.append(shifts - each.ends[:-1], 0)
        runs = np.where(is_held, found.astype(np.int64) + shifts[destinations], NO_KEY)
        made = np.where(is_held, (runs << PLACE_BITS) + places, NO_KEY)
        keys[own] = made[: len(own)]
        if sources is not None:
            copied = sources[len(own) :]
            # a row of other shards gets a key too, by which its copies are found
            (alone,) = np.nonzero(keys[own] == NO_KEY)
            alone = np.intersect1d(alone, copied)
            keys[own[alone]] = (nowhere + 1 + own[alone]) << PLACE_BITS
            copies.append(np.stack([keys[own[copied]], made[len(own) :]], axis=1))
    joined = np.concatenate(copies)
    found_layouts = tuple(
        NumberedRounds(
            own_layout.round,
            layout.round_rows,
            layout.first_round,
            layout.stop_round,
            layout.first_row,
            layout.stop_row,
            layout.most_slices,
            copies=joined,
            run_starts=starts[number],
            layouts=tuple(each.layouts[number] for each in rounds),
        )
        for number, own_layout in enumerate(layouts)
    )
    return found_layouts, keys
