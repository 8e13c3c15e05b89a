"""Metrics of a run on Ray: what is published, and that the Grafana dashboard asks for exactly these."""

from __future__ import annotations

import json
import logging
import re
from typing import Any

import pytest

from tests.conftest import REPOSITORY
from tests.end_to_end.reading import eventually
from windrow.pipeline.statistics.phases import TaskProfile, TrainerStats
from windrow.pipeline.statistics.stats import RunStats, SourceRun

pytest.importorskip("ray")

DASHBOARD = REPOSITORY / "docs" / "_static" / "grafana-dashboard.json"
Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> Series:
    """The series that Ray would have, by name and tags."""
    from windrow.pipeline.executors.ray import run_metrics

    series: Series = {}

    class Fake:
        def __init__(self, name: str, description: str, tag_keys: tuple[str, ...]) -> None:
            self.name, self.tag_keys = name, tag_keys
            assert description.endswith(".")

        def key(self, tags: dict[str, str]) -> Any:
            # Ray raises without this
            assert set(tags) == set(self.tag_keys)
            return self.name, tuple(sorted(tags.items()))

    class FakeCounter(Fake):
        def inc(self, value: float, tags: dict[str, str]) -> None:
            # Ray raises otherwise
            assert value > 0
            series[self.key(tags)] = series.get(self.key(tags), 0.0) + value

    class FakeGauge(Fake):
        def set(self, value: float, tags: dict[str, str]) -> None:
            series[self.key(tags)] = value

    monkeypatch.setattr(run_metrics, "Counter", FakeCounter)
    monkeypatch.setattr(run_metrics, "Gauge", FakeGauge)
    return series


def _stats(times: int) -> RunStats:
    trainer = TrainerStats(1, 2 * times, 30 * times, 400 * times, 5.0 * times, {"storage": 0.5 * times})
    profile = TaskProfile(
        {"decode": 1.0 * times}, requests=7 * times, requested_bytes=800 * times, retries=times
    )
    return RunStats(
        tasks=9 * times,
        profile=profile,
        trainers=(trainer,),
        held_bytes=100 // times,
        memory_bytes=200,
        cache_hits=3 * times,
        cache_misses=4 * times,
        cache_bytes=50,
        dropped_windows=2 * times,
        corrupt_blocks=("a.parquet, row group 1",),
        corrupt_rows=12,
        sources=(SourceRun("web", 70 * times, 5 * times, 0.5 * times, 0.25 * times),),
    )


def _values(series: Series) -> dict[str, float]:
    return {name: value for (name, _), value in series.items()}


def test_counters_grow_and_gauges_follow(published: Series) -> None:
    from windrow.pipeline.executors.ray.run_metrics import METRICS, RunMetrics

    metrics = RunMetrics("a1b2")
    metrics.update(_stats(1))
    metrics.update(_stats(1))
    metrics.update(_stats(2))
    values = _values(published)
    assert values == {
        "windrow_rows": 60,
        "windrow_bytes": 800,
        "windrow_batches": 4,
        "windrow_work_seconds": 10.0,
        "windrow_wait_seconds": 1.0,
        "windrow_tasks": 18,
        "windrow_task_seconds": 2.0,
        "windrow_storage_requests": 14,
        "windrow_storage_bytes": 1_600,
        "windrow_retries": 2,
        "windrow_cache_hits": 6,
        "windrow_cache_misses": 8,
        "windrow_dropped_windows": 4,
        "windrow_held_bytes": 50,
        "windrow_memory_limit_bytes": 200,
        "windrow_cache_bytes": 50,
        "windrow_skipped_blocks": 1,
        "windrow_skipped_rows": 12,
        "windrow_source_rows": 140,
        "windrow_source_tasks": 10,
        "windrow_source_task_seconds": 1.0,
        "windrow_source_wait_seconds": 0.5,
    }
    assert set(values) == set(METRICS)
    wait = next(tags for name, tags in published if name == "windrow_wait_seconds")
    assert wait == (("cause", "storage"), ("run", "a1b2"), ("shard", "1"))
    # a run that starts again after a failure counts from zero
    metrics.update(_stats(1))
    assert _values(published)["windrow_rows"] == 90
    assert _values(published)["windrow_held_bytes"] == 100


def test_gauges_are_set_each_time_since_ray_drops_old_ones(published: Series) -> None:
    from windrow.pipeline.executors.ray.run_metrics import METRICS, RunMetrics

    metrics = RunMetrics("a1b2")
    metrics.update(_stats(1))
    published.clear()
    metrics.update(_stats(1))
    assert set(_values(published)) == {name for name, metric in METRICS.items() if not metric.grows}


def test_an_error_of_metrics_ends_them_and_not_the_run(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from windrow.pipeline.executors.ray import run_metrics

    def fail(*_: Any) -> None:
        raise ValueError("no agent")

    monkeypatch.setattr(run_metrics, "Counter", fail)
    metrics = run_metrics.RunMetrics("a1b2")
    with caplog.at_level(logging.WARNING, "windrow"):
        metrics.update(_stats(1))
        metrics.update(_stats(2))
    assert [record.message for record in caplog.records] == ["metrics of run a1b2 are not published any more"]


def test_a_run_without_profile_publishes_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from windrow.pipeline.executors.ray import run_metrics

    made: list[str] = []

    def note(name: str, *_: Any) -> Any:
        made.append(name)
        raise ValueError("not published")

    monkeypatch.setattr(run_metrics, "Counter", note)
    monkeypatch.setattr(run_metrics, "Gauge", note)
    with caplog.at_level(logging.WARNING, "windrow"):
        run_metrics.RunMetrics("a1b2", published=False).update(_stats(1))
        assert (made, caplog.records) == ([], [])
        run_metrics.RunMetrics("a1b2").update(_stats(1))
    assert made


@pytest.fixture(scope="module")
def dashboard() -> Any:
    return json.loads(DASHBOARD.read_text(encoding="utf-8"))


def test_dashboard_asks_for_exactly_these_metrics(dashboard: Any) -> None:
    from windrow.pipeline.executors.ray.run_metrics import METRICS

    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert all(query.count('{run=~"$run"}') == query.count("ray_windrow_") for query in queries)
    queries.append(dashboard["templating"]["list"][1]["query"]["query"])
    asked = set(re.findall(r"\bray_windrow_\w+", " ".join(queries)))
    assert asked == {metric.exported_name for metric in METRICS.values()}
    by_name = {metric.exported_name: metric for metric in METRICS.values()}
    for query in queries:
        assert query.count("(") == query.count(")")
        for tag, name in re.findall(r"by \((\w+)\) \((?:rate\()?(\w+)", query):
            assert tag in by_name[name].tags, query
        # counters are shown as rates, and gauges as they are
        assert all(by_name[name].grows for name in re.findall(r"(?:rate|increase)\((\w+)", query)), query


def test_dashboard_divides_only_what_has_the_same_labels(dashboard: Any) -> None:
    """PromQL matches both sides of an operator by all labels, and a scalar with everything."""
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            query = re.sub(r"scalar\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)", "1", target["expr"])
            assert "scalar" not in query
            labels = set(re.findall(r"\b(?:avg|count|max|min|sum)( by \(\w+\))?", query))
            assert len(labels) == 1, query
            # a legend can only show labels that are left
            shown = re.findall(r"{{(\w+)}}", target["legendFormat"])
            assert labels == {f" by ({shown[0]})" if shown else ""}


def test_dashboard_is_what_grafana_documents(dashboard: Any) -> None:
    """The fields of Grafana's JSON model: https://grafana.com/docs/grafana/latest/dashboards/build-dashboards/."""
    assert isinstance(dashboard["schemaVersion"], int)
    assert dashboard["schemaVersion"] >= 36, "data sources by type and uid"
    assert {"title", "uid", "tags", "time", "templating", "panels"} <= set(dashboard)
    # of an instance, which importing must not find
    assert not {"id", "__inputs", "__requires"} & set(dashboard)
    variables = {variable["name"]: variable for variable in dashboard["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert variables["run"]["query"]["query"] == "label_values(ray_windrow_tasks_total, run)"
    text = DASHBOARD.read_text(encoding="utf-8")
    used = set(re.findall(r"\$\{?(\w+)", text))
    assert used == {*variables, "__rate_interval", "__all"}
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        assert panel["type"] == "timeseries"
        assert panel["title"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        place = panel["gridPos"]
        assert place["w"] > 0
        assert place["h"] > 0
        # the grid has 24 columns
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
        targets = panel["targets"]
        assert targets
        assert len({target["refId"] for target in targets}) == len(targets)
        assert all(target["expr"].strip() and target["legendFormat"] for target in targets)


@pytest.mark.ray
def test_a_coordinator_publishes_its_run(ray_local: Any) -> None:
    import windrow
    from windrow.pipeline.executors.ray.run_metrics import METRICS

    pipe = windrow.range(1_000, block_rows=100).window(blocks_per_window=2).repeat(1)
    shards = pipe.options(executor="ray", progress=False).split(1)
    with shards[0] as shard:
        assert sum(len(batch["id"]) for batch in shard.iter_batches(batch_size=100)) == 1_000
        coordinator = shard._session._coordinator  # type: ignore[attr-defined]

        def published(actor: Any) -> dict[str, float]:
            actor._metrics.update(actor._core.run_stats(spans=False))
            return {name: value for (name, _), value in actor._metrics._published.items()}

        resources = shard._connection._resources
        assert resources is not None
        resources.shard_client.heartbeat(shard._consumer.report())

        def values() -> dict[str, float]:
            found: dict[str, float] = ray_local.get(coordinator.__ray_call__.remote(published))
            return found

        assert eventually(lambda: values().get("windrow_rows") == 1_000)
        assert set(values()) <= set(METRICS)
        assert values()["windrow_tasks"] > 0
