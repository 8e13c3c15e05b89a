"""Chaos runs on a real cluster: every kind of process is killed, and the delivered rows stay the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.chaos.setting import ACTOR, HOST, KINDS
from tests.conftest import REPOSITORY

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]


# Ray waits this long for a worker that dies before it has registered
RAY_WAITS_SECONDS = 60.0


def run_chaos(tmp_path: Path, *options: str) -> dict[str, Any]:
    report_path = tmp_path / "report.json"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "bench", "chaos", *options, "--json", str(report_path)],
        cwd=REPOSITORY,
        env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"},
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    report: dict[str, Any] = json.loads(report_path.read_text())
    return report


@pytest.mark.nightly
@pytest.mark.parametrize(("minutes", "kills", "seed"), [(0.4, len(KINDS), 1)])
def test_kills_of_every_kind_change_no_rows(tmp_path: Path, minutes: float, kills: int, seed: int) -> None:
    report = run_chaos(tmp_path, "--minutes", f"{minutes}", "--kills", f"{kills}", "--seed", f"{seed}")
    assert report["differences"] == report["errors"] == []
    assert report["kills"] == dict.fromkeys(KINDS, kills // len(KINDS))
    assert report["steps"] > 100


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("options", "kinds"),
    [(["--mixed", "--prepared"], [*KINDS, ACTOR]), (["--replicas", "2"], [*KINDS, HOST])],
)
def test_kills_change_no_rows_of_mixtures_and_replicas(
    tmp_path: Path, options: list[str], kinds: list[str]
) -> None:
    report = run_chaos(tmp_path, *options, "--minutes", "0.5", "--kills", f"{len(kinds)}", "--seed", "2")
    assert report["differences"] == report["errors"] == []
    assert report["kills"] == dict.fromkeys(kinds, 1)


@pytest.mark.nightly
def test_no_batch_waits_for_workers_killed_while_starting(tmp_path: Path) -> None:
    # with one CPU per node, each such kill leaves its node without workers until Ray's timeout
    options = ["--cpus", "1", "--only", "starting", "--minutes", "0.3", "--kills", "3", "--seed", "1"]
    report = run_chaos(tmp_path, *options)
    assert report["differences"] == report["errors"] == []
    assert report["kills"] == {"starting": 3}
    assert report["longest_wait_seconds"] < RAY_WAITS_SECONDS
