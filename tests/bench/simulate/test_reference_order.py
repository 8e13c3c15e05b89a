"""The simulation's oracle agrees with the reference of the laws, and its tasks emit every row."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from bench.simulate.cluster import Cluster
from bench.simulate.reference_order import ReferenceOrder
from bench.simulate.scenario import draw_scenario, draw_split
from tests.laws.reference import assign_as_lists, order_epoch
from windrow.pipeline.plan.cursor import Cursor
from windrow.shuffle.order.runs import Run


@pytest.mark.parametrize("seed", range(40))
def test_oracle_batches_match_the_reference(seed: int) -> None:
    rng = random.Random(seed)
    scenario, split = draw_scenario(rng), draw_split(rng)
    job, dataset = scenario.job, scenario.dataset
    reference = ReferenceOrder(job, dataset)
    values = [list(range(*dataset.firsts[block : block + 2])) for block in range(len(dataset.delivered))]
    order = order_epoch(dataset.blocks, values, cut=job.cut, seed=job.seed, epoch=1)
    assert reference.order(1) == order
    assert sorted(order) == list(range(dataset.firsts[-1]))
    for start in (0, len(order) // 2):
        assigned = assign_as_lists(
            len(order), split.shards, split.batch_rows, split.equal, drop_last=split.drop_last, start=start
        )
        expected = [[[order[row] for row in batch] for batch in shard] for shard in assigned.batches]
        assert reference.batches(1, split, start) == expected


def test_cursor_names_its_window_and_first_row() -> None:
    scenario = draw_scenario(random.Random(1))
    dataset = replace(scenario.dataset, stored=(3, 0, 2), delivered=(3, 0, 2))
    options = replace(scenario.job.options, on_error="raise")
    cut = replace(scenario.job.cut, blocks_per_window=1, bytes_per_window=None)
    job = replace(scenario.job, cut=cut, options=options)
    for known, windows in ((True, [0, 2, 2]), (False, [0, 0, 2])):
        stored: Any = replace(dataset, known=known, corrupt=frozenset())
        reference = ReferenceOrder(replace(job, source=stored, seed=None), stored)
        assert reference.cursor(2, 0) == Cursor(2)
        assert [reference.cursor(2, row).window for row in (1, 3, 4)] == windows
        assert reference.cursor(2, 4).window_row == 3


def test_missing_and_duplicate_rows_are_detected() -> None:
    run = Run(slice=0, index=4, place=0, rows=3)
    assert Cluster.place_rows([{4: [(2, 12), (0, 10)], 5: [(0, 99)]}, {4: [(1, 11)]}], run) == [10, 11, 12]
    with pytest.raises(ValueError, match="1 of the 3 rows of a run are missing"):
        Cluster.place_rows([{4: [(2, 12), (0, 10)]}], run)
    with pytest.raises(ValueError, match="two rows at place 2"):
        Cluster.place_rows([{4: [(2, 12), (2, 12), (0, 10)]}], run)
