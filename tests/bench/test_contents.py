"""Lists and strings through the systems that deliver them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.commands.peers import CONTENT_TARGETS
from bench.data.shapes import find_files
from bench.peers.environments import find_python, make_sample
from bench.peers.names import PEERS
from bench.peers.windrow_threads import WindrowThreads
from bench.throughput.launch import run_system
from bench.throughput.report import summarize
from bench.training.delivered_rows import Verdict, read_fingerprints
from bench.training.facts import Facts, read_facts
from bench.training.request import Request
from bench.training.results import SystemResult, merge_trainers
from bench.training.trainer import EpochTimes, TrainerResult
from tests.bench.training.test_results import REQUEST

FOLDER = Path(__file__).resolve().parents[2] / ".bench"
SYSTEMS = [name for name, peer in PEERS.items() if peer.variable_too]
SIZE_BYTES = 1_500_000


def _find(kind: str, folder: Path) -> tuple[Request, Facts]:
    paths = find_files(kind, folder, SIZE_BYTES)
    facts = read_facts(paths, threads=1)
    request = replace(
        REQUEST,
        **vars(facts),
        batch_size=100,
        epochs=4,
        trainers=1,
        object_store_bytes=150_000_000,
        converted=str(folder / "converted"),
    )
    return request, facts


@pytest.mark.parametrize("kind", CONTENT_TARGETS)
def test_every_row_is_identified_by_its_content(kind: str, tmp_path: Path) -> None:
    request, facts = _find(kind, tmp_path)
    assert (request.content, request.list_columns) == (
        ("tokens", ("tokens",)) if kind == "tokens" else ("body", ())
    )
    trainers = WindrowThreads(request).run()
    epochs = merge_trainers(request, trainers, delivers=True)
    methods = ["content", "row count", "row count", "content"]
    assert [epoch.verdict for epoch in epochs] == [Verdict(method, 0, 0) for method in methods]
    for epoch in (epochs[0], epochs[-1]):
        assert epoch.randomness is not None
        assert epoch.randomness.neighbour_distance == pytest.approx(1.0, abs=0.1)
        assert epoch.randomness.groups_a_batch == pytest.approx(16, abs=0.5)
    result = SystemResult("windrow-threads", 1, epochs)
    assert [epoch.number for epoch in result.steady] == [1, 2]
    order = summarize(result, facts, None).order
    assert order is not None
    assert order.neighbour_distance == min(
        epoch.randomness.neighbour_distance for epoch in epochs if epoch.randomness is not None
    )


@pytest.mark.parametrize("kind", CONTENT_TARGETS)
def test_missing_and_repeated_rows_are_found_by_content(kind: str, tmp_path: Path) -> None:
    request, _ = _find(kind, tmp_path)
    request = replace(request, epochs=2)
    stored = read_fingerprints(request.paths, request.columns[0])
    times = [EpochTimes(0.0, end=1.0, rows=request.rows) for _ in range(2)]
    arrived = [stored[1:], np.concatenate([stored[1:2], stored[1:]])]
    epochs = merge_trainers(request, [TrainerResult(times, arrived)], delivers=True)
    assert [epoch.verdict for epoch in epochs] == [Verdict("content", 1, 0), Verdict("content", 1, 1)]


@pytest.mark.parametrize("kind", CONTENT_TARGETS)
def test_sample_keeps_lists_and_strings(kind: str, tmp_path: Path) -> None:
    request, facts = _find(kind, tmp_path)
    sample = read_facts(make_sample(request.paths, 200, tmp_path), threads=1)
    assert (sample.rows, sample.schema) == (200, facts.schema)


@pytest.mark.nightly
@pytest.mark.timeout(420)
@pytest.mark.parametrize("kind", CONTENT_TARGETS)
@pytest.mark.parametrize("system", SYSTEMS)
def test_systems_deliver_lists_and_strings(system: str, kind: str, tmp_path: Path) -> None:
    request, facts = _find(kind, tmp_path)
    environment, python = PEERS[system].environment, None
    if environment is not None:
        try:
            python = str(find_python(FOLDER, environment))
        except ValueError as absent:
            pytest.skip(str(absent))
    request = replace(request, system=system, python=python)
    result = run_system(request, log=tmp_path / "log", timeout_seconds=400)
    assert result.error is None
    delivers = PEERS[system].delivers
    assert [epoch.rows for epoch in result.epochs] == [facts.rows] * request.epochs
    methods = ["yes (content)", "yes (row count)", "yes (row count)", "yes (content)"]
    assert [str(epoch.verdict) for epoch in result.epochs] == (methods if delivers else ["None"] * 4)
