"""What a coordinator tells observers: plain values, the window of the slowest reader, and spans as they are."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import windrow
from windrow.pipeline.coordinator.failures import Failure
from windrow.pipeline.executors.ray.run_report import (
    RunReporter,
    describe_starter,
    find_slowest_place,
    unpack_spans,
)
from windrow.pipeline.plan.cursor import Place
from windrow.pipeline.plan.program import Program
from windrow.pipeline.statistics.phases import Span, TrainerStats
from windrow.pipeline.statistics.stats import RunStats, Stats

SPANS = (
    Span("map", 0, 1, 1.0, 2.0, "worker a", 0.5, (("decode", 1.0),)),
    Span("read", 0, 2, 2.0, 3.0, "worker b", 0.5, (), "web"),
)
TRAINER_SPANS = (Span("wait", 0, 1, 0.0, 2.0, "shard 0", 0.0, (("decode", 2.0),)), SPANS[0])


def make_program(shards: int = 2, blocks: int = 10, epochs: int | None = 3) -> Program:
    pipe = windrow.range(blocks * 10, block_rows=10).window(blocks_per_window=2).repeat(epochs)
    return Program(pipe.random_shuffle_each_window(seed=7)._job(), shards, False, tuple(range(shards)))


class FakeCore:
    """A coordinator core of which all is known."""

    def __init__(
        self, program: Program, places: Mapping[int, Place], run: RunStats, failure: Failure | None = None
    ) -> None:
        self.answer = program, dict(places), failure
        self.run = run

    def describe(self) -> Any:
        return self.answer

    def run_stats(self, *, spans: bool) -> RunStats:
        return self.run


def make_reporter(*arguments: Any, **more: Any) -> RunReporter:
    return RunReporter(FakeCore(*arguments, **more), describe_starter())  # type: ignore[arg-type]


def make_trainer(shard: int, place: tuple[int, int] | None, rows: int = 10) -> TrainerStats:
    return TrainerStats(shard, 1, rows, 80, 1.0, {"decode": 3.0}, place=place)


@given(
    rows=st.lists(st.integers(0, 300), min_size=1, max_size=4),
    blocks=st.integers(1, 10),
    blocks_per_window=st.integers(1, 4),
)
def test_the_place_is_the_window_of_the_slowest_trainer(
    rows: list[int], blocks: int, blocks_per_window: int
) -> None:
    pipe = windrow.range(blocks * 10, block_rows=10).window(blocks_per_window=blocks_per_window).repeat(30)
    program = Program(pipe._job(), len(rows), False, tuple(range(len(rows))))
    of_epoch = blocks * 10
    trainers = [make_trainer(shard, (row // of_epoch, row % of_epoch)) for shard, row in enumerate(rows)]
    places = {shard: Place(40, 0) for shard in range(len(rows))}
    epoch, row = divmod(min(rows), of_epoch)
    if epoch < 30:
        assert find_slowest_place(program, places, trainers) == (epoch, row // (10 * blocks_per_window))
    else:
        assert find_slowest_place(program, places, trainers) == (29, program.fetched_windows(29))


def test_shards_that_have_closed_do_not_count_while_others_read() -> None:
    trainers = [make_trainer(0, (0, 10)), make_trainer(1, (1, 50))]
    assert find_slowest_place(make_program(), {1: Place(1, 2)}, trainers) == (1, 2)
    assert find_slowest_place(make_program(), {}, trainers) == (0, 0)


def test_without_reports_it_is_what_was_acknowledged() -> None:
    places = {0: Place(1, 4), 1: Place(1, 3)}
    assert find_slowest_place(make_program(), places, [make_trainer(0, (1, 0))]) == (1, 3)
    assert find_slowest_place(make_program(), places, [make_trainer(0, (1, 0)), make_trainer(1, None)]) == (
        1,
        3,
    )
    # rows that are counted as they are read have no window yet
    counted = (
        windrow.range(100, block_rows=10).window(blocks_per_window=2).filter(lambda batch: batch["id"] >= 0)
    )
    program = Program(counted.repeat(3)._job(), 2, False, (0, 1))
    assert find_slowest_place(program, places, [make_trainer(0, (1, 0)), make_trainer(1, (1, 0))]) == (1, 3)
    assert find_slowest_place(program, {}, []) == (0, 0)


def test_the_report_is_json_and_says_what_stats_say() -> None:
    trainers = (make_trainer(0, (1, 50)), make_trainer(1, (1, 30)), TrainerStats(2))
    run = RunStats(tasks=3, trainers=trainers, workers=4, held_bytes=5, memory_bytes=50, epoch_rows=100)
    report = make_reporter(make_program(), {0: Place(1, 0), 1: Place(1, 0)}, run).report()
    assert json.loads(json.dumps(report)) == report
    assert (report["state"], report["epoch"], report["window"], report["windows"]) == ("reading", 1, 1, 5)
    assert (report["rows"], report["bytes"], report["rows_per_second"]) == (20, 160, 5.0)
    assert report["limit"] == Stats(0, 1, trainers[0], run).bottleneck.sentence
    assert report["windrow"] == windrow.__version__
    assert report["source"] == "1 fragment, 10 blocks; 1 column"


@pytest.mark.parametrize(
    ("places", "trainers", "failed", "state"),
    [
        ({}, (), False, "starting"),
        ({}, (make_trainer(0, (0, 10)),), False, "idle"),
        ({0: Place(0, 0)}, (), False, "reading"),
        ({0: Place(0, 0)}, (), True, "failed"),
    ],
)
def test_states(places: Any, trainers: Any, failed: bool, state: str) -> None:
    failure = Failure.capture(windrow.SourceError("the file is gone")) if failed else None
    report = make_reporter(make_program(), places, RunStats(trainers=trainers), failure).report()
    assert report["state"] == state
    assert report["failure"] == ("the file is gone" if failed else "")
    assert bool(report["limit"]) is bool(trainers)


def test_windows_of_a_mixture_are_its_rounds() -> None:
    sources = {"web": windrow.range(60).repeat(), "books": windrow.range(20).repeat()}
    job = windrow.mixture(sources, {"web": 3, "books": 1}, seed=7)._job()
    program = Program(job, 1, False, (0,))
    report = make_reporter(program, {0: Place(0, 2)}, RunStats()).report()
    assert (report["window"], report["windows"]) == (2, program.fetched_windows(0))
    assert report["source"] == "mixture of web, books"


def test_spans_are_those_of_the_timeline_in_order_of_time() -> None:
    reporter = make_reporter(make_program(), {}, RunStats(spans=SPANS, trainer_spans=TRAINER_SPANS))
    spans = unpack_spans(asyncio.run(reporter.pack_spans()))
    assert [Span(**span) for span in spans] == [TRAINER_SPANS[0], *SPANS]
