"""Random numbers keyed by row: independent of batches, of the right distribution, equal on every platform."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.pipeline.tasks.row_generator import EpochRows, RowGenerator, StoredRows

ROWS = 50_000

GOLDEN: list[Any] = [
    [0.044683425922632636, 0.3903611228192344],
    [[703, 861], [326, 802]],
    [0.15040352352014474, 0.9272627686681778],
]


def make(
    start: int = 0, rows: int = 10, *, epoch: int = 0, seed: int = 7, block: int = 3, stage: int = 0
) -> RowGenerator:
    return StoredRows(block, epoch, seed).generator(stage, start, rows, changes_rows=False)


@given(cuts=st.lists(st.integers(1, 39), unique=True).map(sorted))
def test_a_row_draws_the_same_in_any_batch(cuts: list[int]) -> None:
    whole = make(0, 40)
    expected = [whole.random(), whole.integers(5, size=3), whole.normal(size=(2, 2)), whole.uniform(1, 2)]
    parts = [make(start, stop - start) for start, stop in zip([0, *cuts], [*cuts, 40], strict=True)]
    found = [
        [one.random(), one.integers(5, size=3), one.normal(size=(2, 2)), one.uniform(1, 2)] for one in parts
    ]
    for at, values in enumerate(expected):
        assert np.array_equal(np.concatenate([part[at] for part in found]), values)


def test_own_generators_of_rows_do_not_depend_on_the_batch() -> None:
    first, second = make(0, 6), make(4, 2)
    drawn = [one.random() for one in first.generators()]
    assert [one.random() for one in second.generators()] == drawn[4:]
    assert [one.random() for one in first.generators()] != drawn
    taken = make(0, 6).take(np.array([1, 5]))
    assert [one.random() for one in taken.generators()] == [drawn[1], drawn[5]]


@pytest.mark.parametrize("change", [{"epoch": 1}, {"seed": 8}, {"block": 4}, {"stage": 1}, {"start": 10}])
def test_streams_differ_by_epoch_seed_block_transform_and_row(change: dict[str, int]) -> None:
    assert not np.intersect1d(make().random(), make(**change).random()).size


def test_draws_differ_from_each_other() -> None:
    one = make(0, 100)
    drawn = [one.random(), one.random(), *one.random(3).T]
    assert len(np.unique(np.concatenate(drawn))) == 500


def test_distributions() -> None:
    one = make(0, ROWS)
    uniform, normal = one.random(), one.normal(3.0, 2.0)
    bounds = 4 / np.sqrt(ROWS)
    assert uniform.min() >= 0
    assert uniform.max() < 1
    assert abs(uniform.mean() - 0.5) < bounds
    assert abs(uniform.var() - 1 / 12) < bounds
    assert abs(normal.mean() - 3) < 2 * bounds
    assert abs(normal.std() - 2) < 2 * bounds
    between = one.uniform(2.0, 5.0)
    assert between.min() >= 2
    assert between.max() < 5
    assert abs(between.mean() - 3.5) < 3 * bounds
    assert abs(np.corrcoef(uniform[:-1], uniform[1:])[0, 1]) < bounds
    counts = np.bincount(one.integers(10, 20), minlength=20)
    assert not counts[:10].any()
    assert abs(counts[10:] / ROWS - 0.1).max() < bounds


def test_numbers_never_change() -> None:
    """A resumed run continues with the numbers that it began with, also after an upgrade."""
    one = make(0, 2)
    assert one.random().tolist() == pytest.approx(GOLDEN[0], abs=0)
    assert one.integers(1000, size=2).tolist() == GOLDEN[1]
    assert (
        EpochRows(np.array([5, 2**40]), 1, 7).generator(0, 0, 2, changes_rows=False).random().tolist()
        == GOLDEN[2]
    )


def test_what_changes_the_number_of_rows_draws_the_same_in_every_epoch() -> None:
    first, second = (StoredRows(0, epoch, 7).generator(0, 0, 5, changes_rows=True) for epoch in (0, 1))
    assert np.array_equal(first.random(), second.random())


def test_a_bad_range() -> None:
    with pytest.raises(ValueError, match="1 to 2\\*\\*53 integers"):
        make().integers(3, 3)
