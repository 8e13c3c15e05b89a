"""mixture(): what it takes and refuses, what a mixture cannot do, and what it tells of its sources."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import windrow
from windrow import DatasetPipeline, PlanError, SourceError, StateError
from windrow.pipeline.coordinator.source_history import SourceHistory
from windrow.pipeline.plan.cursor import Cursor, MixturePoint
from windrow.pipeline.plan.job import Resources
from windrow.pipeline.plan.memory_budget import budget_program, size_parts
from windrow.pipeline.plan.mixture_legs import MixtureLegs
from windrow.pipeline.plan.program import Program
from windrow.pipeline.shard import run_reader
from windrow.pipeline.statistics.phases import Span
from windrow.shuffle.order.round_runs import MAX_SLICES
from windrow.shuffle.order.shard_assignment import ShardAssignment


def source(rows: int, seed: int | None = 1, times: int | None = None, first: int = 0) -> DatasetPipeline:
    ds = windrow.from_numpy({"id": np.arange(first, first + rows)}, target_block_bytes=80)
    pipe = ds.window(blocks_per_window=3).repeat(times)
    return pipe if seed is None else pipe.random_shuffle_each_window(seed=seed)


def mixed(**options: Any) -> DatasetPipeline:
    sources = {"web": source(100), "books": source(30, 2, first=1000)}
    return windrow.mixture(sources, options.pop("shares", {"web": 3, "books": 1}), seed=7, **options)


Build = Callable[[], Any]
WRONG: Any = "never"


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: windrow.mixture({}, {"a": 1}, seed=7), "give a dict from names"),
        (lambda: windrow.mixture({"a": windrow.range(3)}, {"a": 1}, seed=7), "is a Dataset"),  # type: ignore[dict-item]
        (lambda: windrow.mixture({"a": mixed()}, {"a": 1}, seed=7), "is a mixture itself"),
        (lambda: windrow.mixture({"": source(3)}, {"": 1}, seed=7), "must be a string"),
        (lambda: mixed(shares={"poems": 1}), r"name \['poems'\]"),
        (lambda: mixed(when_exhausted=WRONG), "'stop', 'repeat' or 'drop'"),
        (lambda: mixed(source_column="id"), "has this column already"),
        (
            lambda: windrow.mixture({"a": source(3).filter(lambda row: False)}, {"a": 1}, seed=7),
            "has no rows",
        ),
        (
            lambda: windrow.mixture({"a": source(3).sort_each_window("id")}, {"a": 1}, seed=7),
            "mixtures do not support",
        ),
        (
            lambda: windrow.mixture({"a": source(3).options(on_error="skip")}, {"a": 1}, seed=7),
            "cannot be counted",
        ),
        (lambda: mixed().options(on_error="skip"), "not for mixtures"),
        (lambda: mixed().window(), "comes after mixture"),
        (lambda: mixed().repeat(), "comes after mixture"),
        (lambda: mixed().random_shuffle_each_window(seed=1), "comes after mixture"),
        (lambda: mixed().sort_each_window("id"), "comes after mixture"),
        (lambda: mixed().filter(lambda row: True), "comes after mixture"),
        (lambda: mixed().count(), "how many rows"),
        (lambda: mixed().iterator().skip_epoch(), "single epoch"),
        (lambda: mixed().iterator().steps_per_epoch(4), "no number of steps"),
        (lambda: mixed().iterator().as_torch_dataset(4), "not divided"),
        (lambda: windrow.shuffle_report(mixed()), "each source of the mixture"),
        (lambda: mixed().epoch_lineage(0, 0, 1), "row_lineage"),
        (lambda: mixed().iterator().set_shares({"poems": 1}), "the sources are"),
        (lambda: source(3).iterator().set_shares({"a": 1}), "for mixtures"),
    ],
)
def test_what_a_mixture_cannot_do_is_refused(build: Build, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        build()


def test_unknown_rows_are_counted_once() -> None:
    seen: list[int] = []

    def keeps(row: dict[str, Any]) -> bool:
        seen.append(row["id"])
        return row["id"] % 2 == 0

    pipe = windrow.range(60).repartition(6).filter(keeps).repeat(1)
    mixture = windrow.mixture({"even": pipe}, {"even": 1}, seed=7)
    assert "30 in one pass" in str(mixture.explain())
    # the first block once more, for the columns
    assert len(seen) <= 80


def test_columns_have_to_unify() -> None:
    text = windrow.from_items([{"id": "a"}]).repeat()
    with pytest.raises(SourceError, match="id"):
        windrow.mixture({"numbers": source(5), "text": text}, {"numbers": 1, "text": 1}, seed=7)


def test_transforms_and_the_names_of_sources() -> None:
    pipe = mixed(source_column="of").map_batches(lambda batch: {**batch, "id": batch["id"] + 1})
    batch = next(iter(pipe.iter_batches(batch_size=80)))
    assert ((batch["id"] > 1000) == (batch["of"] == "books")).all()
    assert (batch["of"] == "books").sum() == 20
    assert pipe.schema().names == ["id", "of"]
    assert pipe.schema().field("of").type == pa.string()


def test_a_mixture_has_one_epoch_that_goes_on_where_it_was_left() -> None:
    whole = [row["id"] for row, _ in zip(mixed().iter_rows(), range(60), strict=False)]
    with mixed().iterator() as shard:
        found: list[int] = []
        for size in (10, 20, 30):
            for number, epoch in enumerate(shard.iter_epochs()):
                assert number == 0
                batches = epoch.iter_batches(batch_size=size)
                found += next(iter(batches))["id"].tolist()
                batches.close()
        assert found == whole


def test_a_mixture_that_ends_has_a_length() -> None:
    sources = {"web": source(100, times=1), "books": source(30, 2, times=1)}
    pipe = windrow.mixture(sources, {"web": 3, "books": 1}, seed=7, when_exhausted="drop")
    batches = pipe.iter_batches(batch_size=20)
    assert len(batches) == 7
    assert sum(len(batch["id"]) for batch in batches) == 130
    with mixed().iterator() as shard:
        endless = shard.iter_batches(batch_size=20)
        next(endless)
        with pytest.raises(TypeError, match="endless"):
            len(endless)


def test_explain_and_stats_tell_of_the_sources() -> None:
    text = str(mixed().explain(2, batch_size=8))
    assert "web 75 % (100 rows, endlessly); books 25 % (30 rows, endlessly)" in text
    with mixed().iterator() as shard:
        for _ in zip(range(5), shard.iter_batches(batch_size=32), strict=False):
            pass
        web, books = shard.stats().sources
        assert (web.rows, web.passes, web.share, web.achieved) == (120, 1, 0.75, 0.75)
        assert (books.rows, books.passes, books.share, books.achieved) == (40, 1, 0.25, 0.25)
        assert "books 40 rows (25 %, 25 % so far; 1 passes)" in str(shard.stats())


def test_what_a_run_did_for_each_source() -> None:
    def slowly(batch: dict[str, Any]) -> dict[str, Any]:
        time.sleep(0.02)
        return batch

    sources = {"web": source(100), "books": source(30, 2, first=1000).map_batches(slowly)}
    pipe = windrow.mixture(sources, {"web": 3, "books": 1}, seed=7)
    with pipe.iterator() as shard:
        for _, batch in zip(range(20), shard.iter_batches(batch_size=8), strict=False):
            assert len(batch["id"]) == 8
        stats = shard.stats()
        web, books = stats.run.sources
        assert (web.name, books.name) == ("web", "books")
        assert web.tasks + books.tasks == stats.run.tasks
        assert books.task_seconds >= 0.02 * books.tasks > 0
        kinds = {span.source for span in shard.timeline().spans if span.kind in ("map", "read", "place")}
        assert kinds == {"web", "books"}
    # trainers report about once a second, and when they close
    web, books = shard.stats().run.sources
    assert (web.rows, books.rows) == (120, 40)


def test_a_wait_is_for_the_source_whose_task_ended_last() -> None:
    planned = mixed()._plan.mixture
    assert planned is not None
    sizes = np.ones(sum(len(each.blocks.rows) for each in planned.sources), np.int64)
    legs = MixtureLegs(planned, sizes, 1, 8)
    history = SourceHistory(legs)
    wait = Span("wait", 0, 0, 10.0, 14.0, "shard 0")
    # of an epoch that nobody has opened
    history.note_waits([wait])
    assert not legs.is_open(0)
    assert legs.passed_change(0, 100) is None
    assert not legs.is_open(0)
    legs.open(Cursor(0), ShardAssignment(1, 8))
    first = {legs.leg(0).windows[at].source: at for at in reversed(legs.leg(0).rounds.windows(0))}
    for source, stop in ((1, 9.0), (0, 11.0), (1, 13.0), (0, 15.0)):
        history.finish((0, first[source]), stop - 1, stop)
    history.note_waits([wait, Span("work", 0, 0, 10.0, 14.0, "shard 0")])
    assert [each.wait_seconds for each in history.runs([])] == [0.0, 4.0]
    assert [each.tasks for each in history.runs([])] == [2, 2]


def test_shares_that_change_at_the_end_of_a_mixture_are_missed_by_nobody() -> None:
    """The mixture ends within a step, which counts as taken: its rows behind the end are those of no shares."""
    pipe = windrow.mixture({name: source(5, times=1) for name in ("web", "books")}, {"web": 1}, seed=7)
    planned = pipe._plan.mixture
    assert planned is not None
    legs = MixtureLegs(planned, np.ones(2, np.int64), 1, 8)
    legs.open(Cursor(0), ShardAssignment(1, 8))
    assert legs.leg(0).stop == 5
    changed = MixturePoint((5, 0), 5, shares=(0, 1), steps=1, steps_row=5)
    legs.open(Cursor(1, 5, mixed=changed), ShardAssignment(1, 8))
    assert legs.passed_change(0, 8) is None
    # one that changes before the end is missed by who reads on
    legs.open(
        Cursor(1, 4, mixed=MixturePoint((4, 0), 4, shares=(0, 1), steps=1, steps_row=4)),
        ShardAssignment(1, 8),
    )
    assert legs.passed_change(0, 8) == 4


def test_replicas_get_the_same_batches_also_after_a_change() -> None:
    shards = mixed().split(2, replicas=2)
    iterators = [[shard.iter_batches(batch_size=6) for shard in replicas] for replicas in shards]
    for step in range(12):
        batches = [[next(each)["id"].tolist() for each in replicas] for replicas in iterators]
        assert all(one == other for one, other in batches)
        if step == 6:
            for shard in (each for replicas in shards for each in replicas):
                shard.set_shares({"books": 1})
    assert all(value >= 1000 for one, _ in batches for value in one)
    for shard in (each for replicas in shards for each in replicas):
        shard.close()


def test_shards_have_to_agree_on_shares() -> None:
    left, right = mixed().split(2)
    iterators = [shard.iter_batches(batch_size=6) for shard in (left, right)]
    for each in iterators:
        next(each)
    left.set_shares({"web": 1})
    right.set_shares({"books": 1})
    next(iterators[0])
    with pytest.raises(StateError, match=r"set_shares\(\) with the same shares"):
        next(iterators[1])
    left.close()
    right.close()


@pytest.mark.parametrize("earlier", [0, 1])
def test_a_shard_that_misses_a_change_of_shares_ends_the_run(
    monkeypatch: pytest.MonkeyPatch, earlier: int
) -> None:
    monkeypatch.setattr(run_reader, "_HEARTBEAT_SECONDS", 0.0)
    left, right = mixed().split(2)
    iterators = [shard.iter_batches(batch_size=6) for shard in (left, right)]
    for each in iterators:
        next(each)
    for _ in range(earlier):
        left.set_shares({"web": 1, "books": 2})
        right.set_shares({"web": 1, "books": 2})
        for each in iterators:
            next(each)
    left.set_shares({"web": 1})
    row = left.state_dict()["row"]

    def read_on() -> None:
        for _ in range(100):
            for each in iterators:
                next(each)

    with pytest.raises(
        StateError, match=rf"shard 1 .* set_shares\(\) that others called at row {row}, so rows"
    ):
        read_on()
    left.close()
    right.close()


def test_one_shard_may_begin_another_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_reader, "_HEARTBEAT_SECONDS", 0.0)

    def read(leaves: bool) -> list[list[int]]:
        shards = mixed().split(2)
        iterators = [shard.iter_batches(batch_size=6) for shard in shards]
        found = []
        for step in range(12):
            if leaves and step in (3, 4):
                del iterators[0]
                iterators.insert(0, shards[0].iter_batches(batch_size=6))
            found += [next(each)["id"].tolist() for each in iterators]
        for shard in shards:
            shard.close()
        return found

    assert read(True) == read(False)


def test_states_of_other_streams_and_changed_sources_are_refused() -> None:
    with mixed().iterator() as shard:
        next(shard.iter_batches(batch_size=6))
        state = json.loads(json.dumps(shard.state_dict()))
    with pytest.raises(StateError):
        source(100).iterator(state_dict=state)
    other = {"web": source(101), "books": source(30, 2, first=1000)}
    with pytest.raises(StateError, match="source 'web'"):
        windrow.mixture(other, {"web": 3, "books": 1}, seed=7).iterator(state_dict=state)
    state["mixture"]["sources"][0][2] += 1
    with pytest.raises(StateError, match="checksum"):
        mixed().iterator(state_dict=state)


def test_ten_sources_have_a_state_of_less_than_a_kilobyte() -> None:
    sources = {f"source-{at}": source(100 + at, at) for at in range(10)}
    with windrow.mixture(sources, dict.fromkeys(sources, 1), seed=7).iterator() as shard:
        batches = shard.iter_batches(batch_size=10)
        for at in range(8):
            next(batches)
            shard.set_shares({name: at + 1 + number for number, name in enumerate(sources)})
        assert len(json.dumps(shard.state_dict())) < 1024


def test_a_renamed_source_is_warned_about() -> None:
    pipe = windrow.range(8).repeat().random_shuffle_each_window(seed=1)
    with windrow.mixture({"web": pipe}, {"web": 1}, seed=7).iterator() as shard:
        next(shard.iter_batches(batch_size=3))
        state = shard.state_dict()
    renamed = windrow.mixture({"pages": pipe}, {"pages": 1}, seed=7)
    with pytest.warns(
        RuntimeWarning, match="'pages' starts at its first row: .* name 'web', of which 3 rows were"
    ):
        renamed.iterator(state_dict=state).close()
    with windrow.mixture({"web": pipe, "pages": pipe}, {"web": 1}, seed=7).iterator(state_dict=state):
        pass


def test_windows_are_held_whole_where_memory_is_not_short() -> None:
    table = pa.table({f"c{at}": np.arange(200_000) for at in range(8)})
    whole = {
        name: windrow.from_arrow([table.slice(at, 20_000) for at in range(0, 200_000, 20_000)])
        .window(blocks_per_window=5)
        .repeat()
        .random_shuffle_each_window(seed=1)
        for name in ("web", "books")
    }
    program = Program(windrow.mixture(whole, {"web": 2, "books": 1}, seed=7)._job(), 1, False, (0,))
    found = {}
    for mib in (400, 200):
        resources = Resources("simulated", 2, mib * 2**20, limit_covers_all=True)
        sized = size_parts(program, resources, 100)
        budget = budget_program(sized, resources, 100)
        found[mib] = sized.most_slices, budget.windows
        assert budget.total_bytes <= mib * 2**20
    assert found == {400: (1, 2), 200: (MAX_SLICES, 1)}
