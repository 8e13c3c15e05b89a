from __future__ import annotations

from dataclasses import replace

import pytest

from bench.figures import Figures, sum_up
from bench.peers import PEERS
from bench.rivals.bars import LARGE_BARS, SMALL_BARS, Bar, judge_bars
from tests.bench.test_results import FACTS, merge_results

BAR = Bar("the others", 4.0, ("daft", "petastorm"))


def _at(rate: float, title: str) -> Figures:
    return replace(sum_up(merge_results(), FACTS, None), title=title, megabytes_per_second=rate)


def test_the_fastest_rival_counts_and_one_of_ours_is_enough() -> None:
    figures = {
        "windrow-threads": _at(85, "threads"),
        "windrow-ray": _at(60, "ray"),
        "daft": _at(10, "Daft"),
        "petastorm": _at(20, "Petastorm"),
    }
    (judged,) = judge_bars([BAR], figures)
    assert judged.held
    assert judged.text == (
        "4 x the others (the fastest: Petastorm): threads 4.2 x, held; ray 3.0 x, NOT held"
    )
    del figures["windrow-threads"]
    assert not judge_bars([BAR], figures)[0].held


@pytest.mark.parametrize("measured", [["daft"], ["windrow-threads"], []])
def test_nothing_is_judged_that_was_not_measured(measured: list[str]) -> None:
    assert judge_bars([BAR], {name: _at(1, name) for name in measured}) == []


def test_the_bars_name_systems() -> None:
    for bar in (*LARGE_BARS, *SMALL_BARS):
        assert set(bar.ours) | set(bar.rivals) <= set(PEERS)
        assert all(PEERS[name].rival for name in bar.rivals)
    assert all(PEERS[name].small_too or PEERS[name].by_row for bar in SMALL_BARS for name in bar.rivals)
