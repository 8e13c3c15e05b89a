"""Weighted mixtures: exact shares, no row lost or twice, a function of data and seed, resumable."""

from __future__ import annotations

import re
from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import windrow
from tests.laws.examples import examples
from windrow.core.errors import PlanError, SourceError
from windrow.pipeline.exchange.layouts import apportion

# of no valid type, so that it passes mypy
NEVER: Any = "never"


def dataset(of: int, rows: int, block_rows: int = 10) -> windrow.Dataset:
    columns = {"of": np.full(rows, of), "row": np.arange(rows)}
    return windrow.from_numpy(columns, target_block_bytes=16 * block_rows)


def read(rows: Any) -> list[tuple[int, int]]:
    return [
        (int(of), int(row))
        for batch in rows.iter_batches(50)
        for of, row in zip(batch["of"], batch["row"], strict=True)
    ]


@given(rows=st.integers(0, 10_000), parts=st.lists(st.integers(1, 50), min_size=1, max_size=6))
def test_apportioned_rows_add_up(rows: int, parts: list[int]) -> None:
    weights = [Fraction(part, sum(parts)) for part in parts]
    found = apportion(rows, weights)
    assert sum(found) == rows
    assert all(abs(count - rows * weight) < 1 for count, weight in zip(found, weights, strict=True))


@examples(30)
@given(
    sizes=st.lists(st.integers(1, 120), min_size=1, max_size=4),
    parts=st.lists(st.integers(1, 9), min_size=4, max_size=4),
    seed=st.integers(0, 3),
)
def test_shares_and_rows(sizes: list[int], parts: list[int], seed: int) -> None:
    weights = parts[: len(sizes)]
    datasets = [dataset(number, rows) for number, rows in enumerate(sizes)]
    shares = [weight / sum(weights) for weight in weights]
    once = read(windrow.mix(datasets, weights, seed=seed))
    assert len(set(once)) == len(once)
    total = min(size / share for size, share in zip(sizes, shares, strict=True))
    counts = Counter(of for of, _ in once)
    assert all(abs(counts[number] - total * share) <= 1 + 1e-9 for number, share in enumerate(shares))
    again = read(windrow.mix(datasets, weights, seed=seed, stopping_strategy="all_exhausted"))
    total = max(size / share for size, share in zip(sizes, shares, strict=True))
    counts = Counter(of for of, _ in again)
    assert all(abs(counts[number] - total * share) <= 1 + 1e-9 for number, share in enumerate(shares))
    of_row = Counter(again)
    assert len(of_row) == sum(sizes)
    for number in range(len(sizes)):
        times = [repeats for (of, _), repeats in of_row.items() if of == number]
        assert max(times) - min(times) <= 1


def test_every_stretch_has_the_shares_of_the_whole() -> None:
    mixed = windrow.mix([dataset(0, 3000), dataset(1, 3000)], [0.75, 0.25], seed=1)
    rows = read(mixed)
    assert len(rows) == 4000
    for start in range(0, 4000, 400):
        first = sum(of == 0 for of, _ in rows[start : start + 400])
        assert abs(first - 300) <= 20
    assert read(windrow.mix([dataset(0, 3000), dataset(1, 3000)], [3, 1], seed=1)) == rows
    assert read(windrow.mix([dataset(0, 3000), dataset(1, 3000)], [3, 1], seed=2)) != rows


@pytest.mark.parametrize(
    "executor", ["threads", pytest.param("ray", marks=[pytest.mark.ray, pytest.mark.nightly])]
)
def test_a_pipeline_of_a_mixture_resumes(executor: str, request: pytest.FixtureRequest) -> None:
    if executor == "ray":
        request.getfixturevalue("ray_local")
    datasets = [dataset(0, 300), dataset(1, 100).filter(lambda row: row["row"] % 2 == 0)]
    mixed = windrow.mix(datasets, seed=3, stopping_strategy="all_exhausted")
    pipe = mixed.window(blocks_per_window=8).repeat(2).random_shuffle_each_window(seed=5)
    pipe = pipe.options(executor=executor)
    with pipe.iterator() as shard:
        batches = shard.iter_batches(32)
        first = [next(batches) for _ in range(7)]
        state = shard.state_dict()
        rest = [(of, row) for batch in batches for of, row in zip(batch["of"], batch["row"], strict=True)]
    before = [(of, row) for batch in first for of, row in zip(batch["of"], batch["row"], strict=True)]
    assert len(before) + len(rest) == 600
    found = Counter(rest)
    resumed: Counter[Any] = Counter()
    shards = pipe.split(2, state_dict=state)
    for part in shards:
        resumed += Counter(read(part))
    for part in shards:
        part.close()
    assert resumed == found


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda a, b: windrow.mix([]), "give a list of datasets"),
        (lambda a, b: windrow.mix([a, b.window()]), "window.. and repeat.. come after"),
        (lambda a, b: windrow.mix([a, b], [1]), "1 weights for 2 datasets"),
        (lambda a, b: windrow.mix([a, b], [1, 0]), "weight 0 must be a number above 0"),
        (lambda a, b: windrow.mix([a, b], stopping_strategy=NEVER), "must be 'first_exhausted'"),
        (lambda a, b: windrow.mix([a, b.filter(lambda row: False)]).count(), "dataset 1 has no rows"),
    ],
)
def test_bad_mixtures(build: Any, match: str) -> None:
    with pytest.raises(PlanError, match=match):
        build(dataset(0, 10), dataset(1, 10))


def test_columns_have_to_unify() -> None:
    with pytest.raises(SourceError, match="row"):
        windrow.mix([dataset(0, 10), windrow.from_items([{"of": 1, "row": "x"}])])


def test_all_datasets_are_printed() -> None:
    first, second = windrow.range(3), windrow.range(4).rename_columns({"id": "id"})
    mixed = repr(windrow.mix([first, second], seed=7))
    assert re.search(r"(?m)^  \.mix\(.*\)\n    with range\(4\): .*\n      \.rename_columns", mixed)
    assert repr(first.union(*[second] * 10)).endswith("\n    and 2 more")
