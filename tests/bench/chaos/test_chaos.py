"""Chaos on a real cluster: everything is killed once or more, and nothing differs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.chaos.killer import KINDS
from tests.conftest import REPOSITORY

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]


@pytest.mark.parametrize(("minutes", "kills", "seed"), [(0.6, 2 * len(KINDS), 1)])
def test_killing_everything_changes_nothing(tmp_path: Path, minutes: float, kills: int, seed: int) -> None:
    told = tmp_path / "report.json"
    options = ["--minutes", f"{minutes}", "--kills", f"{kills}", "--seed", f"{seed}", "--json", str(told)]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "bench", "chaos", *options],
        cwd=REPOSITORY,
        env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"},
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    report = json.loads(told.read_text())
    assert report["differences"] == report["errors"] == []
    assert report["kills"] == dict.fromkeys(KINDS, kills // len(KINDS))
    assert report["steps"] > 100
