"""How much of windows is held at a time: of a mixture's, what a round needs of all sources."""

from __future__ import annotations

from math import ceil

import numpy as np
from numpy.typing import NDArray

from windrow.pipeline.plan.leg import Leg
from windrow.pipeline.plan.program import Program

Ints = NDArray[np.int64]

# Epochs sampled for the largest window: blocks are permuted, so window sizes vary a little.
_EPOCHS_SAMPLED = 3


def largest_window(program: Program, sizes: NDArray[np.int64]) -> int:
    """The largest sum over a window of a value that is given for every block of the dataset."""
    if program.legs is not None:
        return find_largest_round(program.legs.leg(0), sizes, program.most_slices)
    epochs = _EPOCHS_SAMPLED if program.job.seed is not None and program.plan(0).windows > 1 else 1
    largest = 0
    for epoch in range(epochs):
        plan = program.plan(epoch)
        before = np.append(0, np.cumsum(sizes[plan.blocks]))
        largest = max(largest, int(np.diff(before[plan.starts]).max(initial=0)))
    return largest


def prefetch_rounds(program: Program) -> int:
    """How many rounds of a mixture are prepared ahead: those that the windows needed at a time fill, on average.

    Not those of the most windows: where windows of all sources end in one round, it needs twice as many as others.
    """
    legs, prefetch = program.legs, program.job.options.prefetch_windows
    assert legs is not None, "the program is of a mixture"
    if not prefetch:
        return 0
    leg, mixture = legs.leg(0), legs.mixture
    # windows of documents count these or sequences, and rounds sequences, but blocks count tokens then
    before = np.append(0, np.cumsum(mixture.block_rows[leg.plan.blocks]))[leg.plan.starts]
    rounds = np.diff(before) / mixture.row_tokens / mixture.round_rows
    spans = np.array([needed.stop_row - needed.first_row for needed in leg.windows], np.int64)
    return max(1, ceil(prefetch * float(rounds @ spans) / max(1, leg.stop - leg.row)))


def find_largest_round(leg: Leg, sizes: Ints, most_slices: int) -> int:
    """The largest sum, over what is held of the windows that a round needs, of a value given for each block."""
    before = np.append(0, np.cumsum(sizes[leg.plan.blocks]))[leg.plan.starts]
    rounds, windows, shares = leg.find_held(most_slices)
    return ceil(np.bincount(rounds - leg.rounds.start, np.diff(before)[windows] * shares).max(initial=0))
