"""How much of a mixture's windows is held at a time: a round needs windows of all sources."""

from __future__ import annotations

from math import ceil

import numpy as np
from numpy.typing import NDArray

from windrow.pipeline.plan.leg import Leg

Ints = NDArray[np.int64]


def find_largest_round(leg: Leg, sizes: Ints, most_slices: int) -> int:
    """The largest sum, over what is held of the windows that a round needs, of a value given for each block."""
    before = np.append(0, np.cumsum(sizes[leg.plan.blocks]))[leg.plan.starts]
    rounds, windows, shares = _find_held(leg, most_slices)
    return ceil(np.bincount(rounds - leg.rounds.start, np.diff(before)[windows] * shares).max(initial=0))


def _find_held(leg: Leg, most_slices: int) -> tuple[Ints, Ints, NDArray[np.float64]]:
    """(pairs,) each round with each window that it needs, and the share of the window that is held then.

    What comes in earlier slices of the window is released: all shards have passed it. In the first round, all of it
    counts: blocks are read whole before it is known which of their rows come, and tasks are expected to hold them.
    """
    rounds = leg.rounds
    counts = rounds.last + 1 - rounds.first
    windows = np.repeat(np.arange(len(leg.windows)), counts)
    at = np.arange(len(windows)) - np.repeat(np.cumsum(counts) - counts, counts)
    slices = np.minimum(most_slices, counts)[windows]
    # the first round of the slice of each
    begins = -(-(at * slices // counts[windows]) * counts[windows] // slices) + rounds.first[windows]
    sources = np.array([needed.source for needed in leg.windows], np.int64)
    spans = [(needed.window.start, needed.window.stop) for needed in leg.windows]
    starts, stops = np.array(spans, np.int64).reshape(-1, 2)[windows].T
    # the rows of each source before each round, or before the leg
    rows = np.arange(rounds.start, rounds.stop, dtype=np.int64) * leg.mixture.round_rows
    first = leg.rows_before(np.maximum(rows, leg.row))[sources[windows], begins - rounds.start]
    left = stops - np.clip(first, starts, stops)
    numbers = at + rounds.first[windows]
    shares = np.where(numbers == rounds.start, 1.0, left / (stops - starts))
    return numbers, windows, shares
