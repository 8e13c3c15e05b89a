"""``python -m bench executors``: trainers on threads, what is judged, and (at night) the whole command."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from bench.cli import main
from bench.commands.executors import _print_tables
from bench.data.shapes import find_files
from bench.shapes.systems import OTHER, measure


@pytest.mark.parametrize("cache", [None, "memory"])
def test_trainers_on_threads(tmp_path: Path, cache: str | None) -> None:
    paths = find_files("tokens", tmp_path, 1_000_000)
    request = {"paths": paths, "epochs": 2, "trainers": 2, "window": None, "cache": cache}
    found = measure(request, "threads")
    assert found["rows"] == sum(pq.read_metadata(path).num_rows for path in paths)
    assert min(found["seconds"], found["cpu_seconds"], *found["parts"].values()) > 0


def test_cached_epochs_are_judged(capsys: pytest.CaptureFixture[str]) -> None:
    def medians(seconds: float, cpu_seconds: dict[str, float]) -> dict[tuple[str, str], dict[str, float]]:
        return {("plain", cache): {"seconds": seconds, **cpu_seconds} for cache in ("none", "memory")}

    threads, slow = medians(0.5, {OTHER: 1.0}), medians(0.625, {"coordinator": 0.25, "trainers": 1.0})
    assert not _print_tables({"threads": threads, "ray": slow})
    printed = capsys.readouterr().out.splitlines()
    assert printed[3].split() == ["plain", "memory", "0.500", "0.625", "0.80", "0.90"]
    assert [line.split()[-1] for line in printed if line.startswith(("coordinator", "all"))] == [
        "0.250",
        "1.250",
        "1.000",
    ]
    assert _print_tables({"threads": threads, "ray": medians(0.55, {"trainers": 1.0})})


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = tmp_path / "out.json"
    options = ["--shapes", "plain", "--size", "1MB", "--rounds", "1", "--epochs", "1", "--store", "200MB"]
    main(["executors", *options, "--folder", str(tmp_path), "--json", str(written)])
    measured = json.loads(written.read_text())["measured"]
    printed = capsys.readouterr().out
    assert [(one["executor"], one["cache"]) for one in measured if "error" not in one] == [
        ("threads", "none"),
        ("threads", "memory"),
        ("ray", "none"),
        ("ray", "memory"),
    ], printed
    assert {"coordinator", "trainers", "map workers", "GCS"} <= set(measured[-1]["parts"])
