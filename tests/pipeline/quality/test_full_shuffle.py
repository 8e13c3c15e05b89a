"""The laws of a full shuffle, against exact enumeration and scipy."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from windrow.pipeline.quality.measures import (
    displacement_quantile,
    expect_distinct,
    meeting_probability,
)


def test_expected_groups_are_those_of_all_draws() -> None:
    owners = np.repeat([0, 1, 2, 3], [3, 1, 2, 4])
    for drawn in range(1, len(owners) + 1):
        found = [len(set(owners[list(draw)])) for draw in combinations(range(len(owners)), drawn)]
        expected = expect_distinct(np.array([3, 1, 0, 2, 4]), drawn)
        assert expected == pytest.approx(np.mean(found)), drawn


@pytest.mark.parametrize(("size", "drawn"), [(4096, 256), (100_000, 4096), (3000, 50_000)])
def test_large_groups_follow_the_hypergeometric_law(size: int, drawn: int) -> None:
    sizes = np.array([size, 10**6 - size])
    missed = sum(float(stats.hypergeom.pmf(0, 10**6, each, drawn)) for each in sizes)
    assert expect_distinct(sizes, drawn) == pytest.approx(2 - missed)
    # of huge totals, scipy loses the digits; each draw then misses the group with nearly the same probability
    total = 10**14
    missed = math.exp(drawn * math.log1p(-size / total))
    found = expect_distinct(np.array([size, total - size]), drawn) - 1
    assert found == pytest.approx(1 - missed, rel=1e-6)


def test_meeting_probability_counts_the_pairs_of_batches() -> None:
    for total, size in ((10, 3), (9, 3), (4, 9), (7, 1)):
        batches = np.arange(total) // size
        met = sum(batches[left] == batches[right] for left, right in combinations(range(total), 2))
        assert meeting_probability(total, size) == pytest.approx(met / (total * (total - 1) / 2))
    assert meeting_probability(1, 8) == 0


def test_displacement_quantiles_are_those_of_random_places() -> None:
    places = np.arange(2000)
    distances = np.abs(places[:, None] - places).ravel() / 2000
    for percent in (5, 50, 95):
        assert displacement_quantile(percent / 100) == pytest.approx(
            np.percentile(distances, percent), abs=1e-3
        )
