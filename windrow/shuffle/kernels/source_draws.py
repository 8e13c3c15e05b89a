"""Draws which source each row of a mixture comes from, in C, for `windrow.shuffle.order.source_draws`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from windrow.shuffle.kernels import native


def draw(weights: NDArray[np.int64], draws: NDArray[np.float64], horizon: int) -> NDArray[np.int32]:
    """(rows,) the source of each of the first rows of a period, which has as many rows as the weights add up to.

    ``draws``, (rows, 2), are numbers from 0 to less than 1. No row that can be one of the first is due behind
    ``horizon``.
    """
    sources, rows = len(weights), len(draws)
    native._require(native._is(weights, np.int64, sources) and weights.flags.c_contiguous, "weights")
    native._require(bool((weights >= 0).all()), "weights")
    total = int(weights.sum())
    # the product of two has to fit into 64 bits
    native._require(0 < rows <= horizon <= total < 2**31, "rows, horizon and weights")
    shortest = int(weights[weights > 0].min())
    native._require(horizon >= min(total, rows + -(-total // shortest)), "horizon")
    native._require(native._is(draws, np.float64, rows, 2) and draws.flags.c_contiguous, "draws")
    native._require(float(draws.min()) >= 0 and float(draws.max()) < 1, "draws")
    out = np.empty(rows, np.int32)
    following, sums = np.empty(4 * sources, np.int64), np.empty(sources)
    slack, tight = np.empty(horizon + 1, np.int32), np.empty(horizon + 1, np.int32)
    native.LIBRARY.windrow_draw_sources(
        sources, weights, total, rows, horizon, draws, following, sums, slack, tight, out
    )
    return out
