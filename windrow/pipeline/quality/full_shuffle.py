"""What a full shuffle, in which every order of all rows is equally likely, leads one to expect."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

__all__ = ["MEAN_DISPLACEMENT", "displacement_quantile", "expect_distinct", "meeting_probability"]

# mean distance between two random places, relative to the number of places
MEAN_DISPLACEMENT = 1 / 3
# of a product that are computed
_FACTORS = 1024


def expect_distinct(sizes: NDArray[np.int64], drawn: int) -> float:
    """Expected number of distinct groups among rows that are drawn without replacement.

    The number of drawn rows of a group follows the hypergeometric law. So of N rows, a group of n is missed with
    probability C(N − n, drawn) / C(N, drawn).

    Parameters
    ----------
    sizes
        (groups,) rows of each group.
    drawn
        Rows drawn, at most all.

    Examples
    --------
    >>> round(expect_distinct(np.array([2, 2]), 2), 6)
    1.666667
    >>> expect_distinct(np.array([3, 1, 0]), 4)
    2.0
    """
    total = int(sizes.sum())
    distinct, counts = np.unique(sizes[sizes > 0], return_counts=True)
    found = 0.0
    for size, count in zip(distinct.tolist(), counts.tolist(), strict=True):
        found += count * (1 - _missed(total, size, drawn))
    return found


def _missed(total: int, size: int, drawn: int) -> float:
    """C(total − size, drawn) / C(total, drawn)."""
    few, many = sorted((size, drawn))
    if few + many > total:
        return 0.0
    # The product of (total − many − i) / (total − i) for all i < few. Factorials of large totals would cancel each
    # other's digits, and so many factors vary so slowly that their mean comes from some of them.
    count = min(few, _FACTORS)
    steps = (np.arange(count) + 0.5) * few / count - 0.5
    return math.exp(few * float(np.log1p(-many / (total - steps)).mean())) if count else 1.0


def meeting_probability(total: int, batch_size: int) -> float:
    """Probability that two given rows of ``total`` share a batch; the last batch can be short.

    >>> meeting_probability(4, 2), meeting_probability(5, 8)
    (0.333..., 1.0)
    """
    if total < 2:
        return 0.0
    batches, rest = divmod(total, batch_size)
    pairs = batches * batch_size * (batch_size - 1) + rest * (rest - 1)
    return pairs / (total * (total - 1))


def displacement_quantile(share: float) -> float:
    """The displacement below which a ``share`` of rows lies, relative to the number of rows.

    The distance x of two random places, of places in [0, 1], has the distribution function 2x − x².

    >>> displacement_quantile(0.75), displacement_quantile(1)
    (0.5, 1.0)
    """
    return 1 - math.sqrt(1 - share)
