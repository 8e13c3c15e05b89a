from __future__ import annotations

from dataclasses import replace

import pytest

from bench.commands.peers import CONTENT_TARGETS, LARGE_TARGETS, SMALL_TARGETS, Target, check_targets
from bench.data.shapes import SHAPES
from bench.peers.names import PEERS
from bench.throughput.report import Summary, summarize
from bench.training.delivered_rows import Randomness
from tests.bench.training.test_results import FACTS, merge_results

TARGET = Target("the others", 4.0, ("daft", "petastorm"))


def _at(rate: float, title: str) -> Summary:
    return replace(summarize(merge_results(), FACTS, None), title=title, megabytes_per_second=rate)


def test_target_compares_the_best_windrow_system_with_the_fastest_rival() -> None:
    summaries = {
        "windrow-threads": _at(85, "threads"),
        "windrow-ray": _at(60, "ray"),
        "daft": _at(10, "Daft"),
        "petastorm": _at(20, "Petastorm"),
    }
    (target_results,) = check_targets([TARGET], summaries)
    assert target_results.met
    assert target_results.text == (
        "4 x the others (fastest: Petastorm): threads 4.2 x, met; ray 3.0 x, NOT met"
    )
    del summaries["windrow-threads"]
    assert not check_targets([TARGET], summaries)[0].met


def test_rivals_that_shuffle_worse_do_not_count_if_they_have_to_shuffle_as_well() -> None:
    summaries = {
        name: replace(
            _at(rate, name),
            order=Randomness(distance, 16.0, 16.0, 0.0),
        )
        for name, rate, distance in [
            ("windrow-threads", 60, 1.0),
            ("windrow-ray", 60, 0.9),
            ("daft", 10, 0.9),
            ("petastorm", 30, 0.8),
        ]
    }
    as_well = replace(TARGET, as_well=True)
    (found,) = check_targets([as_well], summaries)
    assert (found.met, "fastest: daft" in found.text) == (True, True)
    (found,) = check_targets([TARGET], summaries)
    assert (found.met, "fastest: petastorm" in found.text) == (False, True)
    del summaries["daft"]
    assert check_targets([as_well], summaries) == []


@pytest.mark.parametrize("measured", [["daft"], ["windrow-threads"], []])
def test_targets_without_measurements_are_skipped(measured: list[str]) -> None:
    assert check_targets([TARGET], {name: _at(1, name) for name in measured}) == []


def test_targets_name_known_systems() -> None:
    contents = [target for targets in CONTENT_TARGETS.values() for target in targets]
    for target in (*LARGE_TARGETS, *SMALL_TARGETS, *contents):
        assert set(target.ours) | set(target.rivals) <= set(PEERS)
        assert all(PEERS[name].rival for name in target.rivals)
    assert all(
        PEERS[name].small_too or PEERS[name].by_row for target in SMALL_TARGETS for name in target.rivals
    )
    assert all(PEERS[name].variable_too for target in contents for name in (*target.rivals, *target.ours))
    assert set(CONTENT_TARGETS) <= set(SHAPES)
