"""A timeline has every window, task and trainer of a run, on both executors, and its files can be read."""

from __future__ import annotations

import json
import pickle
import threading
import time
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import windrow
from tests.end_to_end.reading import at_once
from windrow.core.errors import PlanError
from windrow.pipeline.shard.consumer import SpanLog
from windrow.pipeline.statistics.phases import Span
from windrow.pipeline.timeline.exports import format_trace
from windrow.pipeline.timeline.lanes import arrange, cut_phases, describe_windows
from windrow.pipeline.timeline.timeline import Timeline

ROWS, EPOCHS = 4_000, 2


def _pipe(executor: str) -> windrow.DatasetPipeline:
    ds = windrow.range(ROWS, block_rows=250).map_batches(_slowly)
    pipe = ds.window(blocks_per_window=4).repeat(EPOCHS).random_shuffle_each_window(seed=7)
    return pipe.options(executor=executor, progress=False)


def _slowly(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    time.sleep(0.005)
    return batch


def _read(shard: windrow.Shard) -> int:
    rows = 0
    for epoch in shard.iter_epochs():
        for batch in epoch.iter_batches(batch_size=100):
            rows += len(batch["id"])
    return rows


@pytest.fixture(params=["threads", pytest.param("ray", marks=pytest.mark.ray)])
def executor(request: pytest.FixtureRequest) -> str:
    if request.param == "ray":
        request.getfixturevalue("ray_local")
    return str(request.param)


def test_a_run_of_two_shards(executor: str, tmp_path: Path) -> None:
    pipe = _pipe(executor)
    shards = pipe.split(2, equal=True)
    assert sum(at_once(shards, _read)) == EPOCHS * ROWS
    for timeline in (pipe.timeline(), shards[1].timeline()):
        _check(timeline, windows=8, blocks=32)
    for shard in shards:
        shard.close()
    # what was known at the end stays known, also without the shards
    del shards, shard
    closed = pipe.timeline()
    _check(closed, windows=8, blocks=32)
    closed.save(tmp_path / "run.json")
    _check_trace(json.loads((tmp_path / "run.json").read_text()), closed)


def _check(timeline: Timeline, *, windows: int, blocks: int) -> None:
    kinds = defaultdict(list)
    for span in timeline.spans:
        kinds[span.kind].append(span)
        assert timeline.start_time <= span.start_time <= span.stop_time <= timeline.stop_time
    assert 0 < len(kinds["map"]) <= blocks
    assert sum(dict(span.phases)["transform"] for span in kinds["map"]) > 0.004 * blocks
    assert {(span.epoch, span.window) for span in kinds["work"]} == {
        (epoch, window) for epoch in range(EPOCHS) for window in range(windows // EPOCHS)
    }
    assert {span.lane for span in kinds["wait"]} == {"shard 0", "shard 1"}
    assert set(timeline.idle) == {0, 1}
    assert all(0 < share < 1 for share in timeline.idle.values())
    # a trainer does one thing at a time
    for lane in timeline.lanes:
        if lane.group == "trainer":
            own = sorted(lane.spans, key=lambda span: span.start_time)
            assert all(one.stop_time <= two.start_time + 1e-3 for one, two in pairwise(own))


def _check_trace(trace: dict[str, Any], timeline: Timeline) -> None:
    events = trace["traceEvents"]
    complete = [event for event in events if event["ph"] == "X"]
    assert all(event["ts"] >= 0 and event["dur"] >= 0 for event in complete)
    named = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    assert {(event["pid"], event["tid"]) for event in complete} == named
    windows = {event["name"] for event in complete if event["cat"] == "window"}
    assert windows == {f"epoch {epoch}, window {window}" for epoch in range(2) for window in range(4)}
    waiting = [event["args"]["trainers"] for event in events if event["ph"] == "C"]
    assert max(waiting) in (1, 2)
    assert waiting[-1] == 0
    assert trace["otherData"]["start_time"] == timeline.start_time


@pytest.mark.ray_at_night
def test_a_timeline_of_a_run_that_goes_on(executor: str) -> None:
    pipe = _pipe(executor)
    with pipe.iterator() as shard:
        batches = iter(shard.iter_batches(batch_size=100))
        next(batches)
        early = pipe.timeline()
        for _ in range(19):
            next(batches)
        later = shard.timeline()
    assert {span.kind for span in early.spans} >= {"map", "wait"}
    assert later.stop_time > early.stop_time
    assert len(later.spans) > len(early.spans)


@pytest.mark.ray
@pytest.mark.nightly
def test_shards_that_other_processes_read(ray_local: Any) -> None:
    pipe = _pipe("ray")
    shards = pipe.split(2, equal=True)
    reading = ray_local.remote(_read)
    assert (
        sum(ray_local.get([reading.options(num_cpus=0).remote(shard) for shard in shards])) == EPOCHS * ROWS
    )
    timeline = pipe.timeline()
    assert {span.lane for span in timeline.spans if span.kind == "work"} == {"shard 0", "shard 1"}
    assert {(span.epoch, span.window) for span in timeline.spans if span.kind == "map"} == {
        (epoch, window) for epoch in range(EPOCHS) for window in range(4)
    }


def test_each_run_has_its_own_timeline() -> None:
    pipe = _pipe("threads")
    first = pipe.iterator()
    _read(first)
    assert sum(len(batch["id"]) for batch in pipe.iter_batches(batch_size=100)) == EPOCHS * ROWS
    whole, own = pipe.timeline(), first.timeline()
    assert whole.start_time >= own.stop_time - 0.01
    first.close()


@pytest.mark.ray_at_night
def test_shards_that_were_dropped_and_not_closed(executor: str) -> None:
    pipe = _pipe(executor)
    assert sum(at_once(pipe.split(2, equal=True), _read)) == EPOCHS * ROWS
    _check(pipe.timeline(), windows=8, blocks=32)


def test_nothing_has_run() -> None:
    pipe = _pipe("threads")
    with pytest.raises(PlanError, match=r"this pipeline has not been read in this process.*another one"):
        pipe.timeline()
    shard = pipe.iterator()
    with pytest.raises(PlanError, match=r"nothing has been read. Read some batches first"):
        shard.timeline()
    _read(shard)
    # a copy is another pipeline, and equal to this one
    copy = pickle.loads(pickle.dumps(pipe))
    with pytest.raises(PlanError, match="has not been read"):
        copy.timeline()
    assert repr(copy) == repr(pipe)
    assert pipe.timeline().spans


def test_a_pipeline_keeps_no_thread_and_no_job() -> None:
    pipe = _pipe("threads")
    shard = pipe.iterator()
    next(iter(shard.iter_batches(batch_size=10)))
    del shard
    deadline = time.monotonic() + 20
    while any(thread.name.startswith("windrow") for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _example() -> Timeline:
    return Timeline(
        (
            Span(
                "map", 0, 0, 1.0, 3.0, "worker 0", 0.5, (("decode", 0.5), ("storage", 1.0), ("shuffle", 0.5))
            ),
            Span("map", 0, 1, 2.0, 4.0, "worker 1", 2.0, (("decode", 2.0),)),
            Span("transfer", 0, 0, 3.0, 3.2, "shard 0", 3.0),
            Span("reduce", 0, 0, 3.2, 3.5, "shard 0", 3.2),
            Span("collate", 0, 0, 3.5, 3.6, "shard 0", 3.5, (("collate", 0.1),)),
            Span("wait", 0, 0, 0.6, 3.6, "shard 0", 0.6, (("storage", 2.0), ("decode", 1.0))),
            Span("work", 0, 0, 3.6, 4.6, "shard 0", 3.6),
        )
    )


def test_numbers_of_an_example() -> None:
    timeline = _example()
    assert (timeline.start_time, timeline.stop_time) == (0.5, 4.6)
    assert timeline.idle == {0: pytest.approx(0.75)}
    assert str(timeline) == "4.1 s; 2 windows; 2 tasks; 1 trainer, idle 75.0% of the time, the start included"
    assert [(lane.group, lane.name) for lane in timeline.lanes] == [
        ("window", "window 1"),
        ("window", "window 2"),
        ("task", "task 1"),
        ("task", "task 2"),
        ("transfer", "transfer 1"),
        ("placing", "placing 1"),
        ("batches", "batches 1"),
        ("trainer", "trainer 0"),
    ]
    windows = describe_windows(timeline.spans)
    assert [(one.start_time, one.stop_time) for one in windows] == [(0.5, 4.6), (2.0, 4.0)]
    # in the order of a row's way, and in the proportions that were measured
    assert cut_phases(timeline.spans[0]) == [
        ("storage", 1.0, 2.0),
        ("decode", 2.0, 2.5),
        ("shuffle", 2.5, 3.0),
    ]


def test_a_mixture_has_a_lane_for_each_source() -> None:
    def spans(name: str, window: int, start: float) -> list[Span]:
        return [Span("map", 0, window, start, start + 1.0, "worker 1", start - 0.5, (), name)]

    tasks = [*spans("web", 0, 1.0), *spans("web", 0, 2.0), *spans("books", 1, 1.0), *spans("web", 2, 3.5)]
    timeline = Timeline((*tasks, Span("work", 0, 7, 4.5, 5.0, "shard 0", 4.5)))
    by_lane = {lane.name: lane for lane in timeline.lanes if lane.group in ("source", "window")}
    assert {name: [span.window for span in lane.spans] for name, lane in by_lane.items()} == {
        "web": [0, 2],
        "books": [1],
        "window 1": [7],
    }
    assert [(one.start_time, one.stop_time) for one in by_lane["web"].spans] == [(0.5, 3.0), (3.0, 4.5)]
    events = json.loads(format_trace(timeline.lanes, 0.5, {}))["traceEvents"]
    assert sum(event["name"] == "web, window 2" for event in events) == 1
    assert [event["args"]["source"] for event in events if event["name"] == "map task"].count("web") == 3


def test_trace_of_an_example() -> None:
    trace = json.loads(format_trace(arrange(_example().spans), 0.5, {}))
    by_name = {event["name"]: event for event in trace["traceEvents"] if event["ph"] == "X"}
    assert (by_name["wait: storage"]["ts"], by_name["wait: storage"]["dur"]) == (0.1e6, 3e6)
    assert by_name["storage"]["dur"] == 1e6
    tasks = [event for event in trace["traceEvents"] if event["name"] == "map task"]
    assert tasks[0]["args"]["seconds waiting to start"] == 0.5
    counted = [event for event in trace["traceEvents"] if event["ph"] == "C"]
    assert [(event["ts"], event["args"]["trainers"]) for event in counted] == [(0.1e6, 1), (3.1e6, 0)]


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_pictures(suffix: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "new" / f"run.{suffix}"
    _example().save(path)
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG" if suffix == "png" else b"<?xml")
    if suffix == "svg":
        text = content.decode()
        shown = ("read from storage", "decode", "group rows", "transfer", "place rows", "train")
        assert all(f">{label}<" in text for label in (*shown, "wait: the trainer and its GPU are idle"))
        assert ">transform<" not in text


def test_transforms_after_the_shuffle_are_told_from_placing(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    ds = windrow.range(1_000, block_rows=250).window(blocks_per_window=4).random_shuffle_each_window(seed=7)
    pipe = ds.map_batches(_slowly).options(executor="threads", progress=False)
    shard = pipe.iterator()
    assert _read(shard) == 1_000
    shard.close()
    timeline = shard.timeline()
    placing = [span for lane in timeline.lanes if lane.group == "placing" for span in lane.spans]
    assert placing
    for span in placing:
        names, lengths = zip(*[(name, stop - start) for name, start, stop in cut_phases(span)], strict=True)
        assert names[:2] == ("shuffle", "prepare")
        assert lengths[1] >= 0.004
    timeline.save(tmp_path / "run.svg")
    text = (tmp_path / "run.svg").read_text()
    assert ">transform after the shuffle<" in text
    assert ">place rows<" in text
    assert ">group rows<" in text
    timeline.save(tmp_path / "run.json")
    events = json.loads((tmp_path / "run.json").read_text())["traceEvents"]
    assert sum(event["name"] == "prepare" for event in events) == len(placing)


def test_a_picture_of_many_trainers_says_what_it_leaves_out(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    spans = tuple(Span("work", 0, 0, 0.0, 1.0, f"shard {shard}") for shard in range(40))
    Timeline(spans).save(tmp_path / "run.svg")
    assert "24 more lanes of trainer" in (tmp_path / "run.svg").read_text()


def test_errors_of_saving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PlanError, match=r"'run\.txt': use \.json for Perfetto, or \.png"):
        _example().save(tmp_path / "run.txt")
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(PlanError, match=r'needs matplotlib.*pip install "windrow\[plot\]"'):
        _example().save(tmp_path / "run.png")


def test_work_between_waits_is_one_span_for_each_window() -> None:
    log = SpanLog(3)
    log.add_batch((0, 0), 0.0, 1.0)
    log.add_batch((0, 0), 3.0, 5.0)
    log.add_batch((0, 1), 6.0, 6.0)
    log.end_work(9.0)
    log.end_work(10.0)
    assert [(span.kind, span.window, span.lane, span.start_time, span.stop_time) for span in log] == [
        ("work", 0, "shard 3", 1.0, 3.0),
        ("work", 0, "shard 3", 5.0, 6.0),
        ("work", 1, "shard 3", 6.0, 9.0),
    ]


def test_batches_that_come_at_once_add_no_spans() -> None:
    pipe = windrow.from_arrow(pa.table({"x": range(40_000)})).window(blocks_per_window=1).repeat(2)
    with pipe.options(executor="threads").iterator() as shard:
        for epoch in shard.iter_epochs():
            assert sum(1 for _ in epoch.iter_batches(batch_size=10)) == 4_000
        kinds = Counter(span.kind for span in shard.timeline().spans)
    # one after each wait, one for each window, and one behind the last batch of each epoch
    assert kinds["work"] <= kinds["wait"] + 4


def test_what_follows_the_last_batch_of_an_abandoned_epoch_is_not_work() -> None:
    pipe = windrow.from_arrow(pa.table({"x": range(1_000)})).repeat(1).options(executor="threads")
    with pipe.iterator() as shard:
        batches = next(iter(shard.iter_epochs())).iter_batches(batch_size=100)
        next(batches)
        next(batches)
        returned = time.time()
        time.sleep(0.2)
        batches.close()
        assert max(span.stop_time for span in shard.timeline().spans if span.kind == "work") <= returned


def test_spans_of_a_shard_are_bounded() -> None:
    log = SpanLog(3)
    for step in range(30_000):
        log.add("reduce", 0, 0, step, step, "shard 3", 0.0)
    assert len(list(log)) == 5_000, "without a report"
    assert len(log.take_unsent()) == 5_000
    assert log.take_unsent() == ()
    for _ in range(5):
        for step in range(5_000):
            log.add("reduce", 0, 0, step, step, "shard 3", 0.0)
        assert log.take_unsent()[-1] == Span("reduce", 0, 0, 4_999, 4_999, "shard 3")
    assert len(list(log)) == 20_000


def test_opentelemetry() -> None:
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    export = pytest.importorskip("opentelemetry.sdk.trace.export")
    memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    exporter = memory.InMemorySpanExporter()
    provider = sdk.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(exporter))
    timeline = _example()
    assert timeline.export_spans(provider) == 10
    spans = {span.name: span for span in exporter.get_finished_spans()}
    run, window, task = spans["windrow run"], spans["windrow window"], spans["windrow transfer"]
    assert (run.start_time, run.end_time) == (500_000_000, 4_600_000_000)
    assert (task.start_time, task.end_time) == (3_000_000_000, 3_200_000_000)
    assert window.parent.span_id == run.context.span_id
    assert spans["windrow wait"].attributes["windrow.storage_seconds"] == 2.0
    parents = {one.context.span_id: one.name for one in exporter.get_finished_spans()}
    assert parents[task.parent.span_id] == "windrow window"
    with pytest.raises(PlanError, match="is not a tracer provider of OpenTelemetry"):
        timeline.export_spans(object())
