from __future__ import annotations

from dataclasses import replace

import pytest

from bench.commands.peers import draw_orders, shuffles_as_well
from bench.throughput.report import summarize
from bench.training.delivered_rows import Randomness
from tests.bench.training.test_results import FACTS, merge_results


def test_table_shows_the_measured_order() -> None:
    summaries = replace(summarize(merge_results(), FACTS, None), order=Randomness(1.0, 24.04, 63.9, 0.5))
    table = draw_orders({"windrow-ray": summaries, "scan": summaries})
    head, _, line, *rest = table.splitlines()
    assert len(rest) == 1  # the note: a scan delivers nothing
    assert "24.0 of 63.9" in line
    assert "50.00" in line
    assert line[head.index("exactly once") :].startswith("yes (key)")


def test_order_is_empty_without_a_key() -> None:
    summaries = replace(summarize(merge_results(), FACTS, None), order=None)
    assert draw_orders({"daft": summaries}).splitlines()[2].split()[-3:-1] == ["-", "-"]


@pytest.mark.parametrize(
    ("order", "as_well"),
    [
        ({}, True),
        ({"neighbour_distance": 0.96}, True),
        ({"neighbour_distance": 0.94}, False),
        ({"groups_a_batch": 16.0, "groups_expected": 64.0}, False),
        ({"neighbours_kept": 0.1}, False),
        (None, False),
    ],
)
def test_order_is_as_random_by_every_measure(order: dict[str, float] | None, as_well: bool) -> None:
    whole = Randomness(1.0, 16.0, 16.0, 0.01)
    ours = replace(summarize(merge_results(), FACTS, None), order=whole)
    other = replace(ours, order=None if order is None else replace(whole, **order))
    assert shuffles_as_well(other, ours) is as_well
