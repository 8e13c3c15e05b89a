"""``python -m bench stacks``: every row of each epoch is checked, and missed waits change the exit status."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.cli import main

OPTIONS = ["stacks", "--size", "5MB", "--epochs", "5", "--batch-size", "4096"]


@pytest.mark.nightly
def test_trainer_of_a_loop(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([*OPTIONS, "--stacks", "shard", "--folder", str(tmp_path)])
    printed = capsys.readouterr().out
    assert "\nshard " in printed
    assert "not every row" not in printed


def test_faults_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    results: dict[str, Any] = {
        "shard": {"waited": 0.05, "between": 0.1, "step_seconds": 0.01, "sums": [[1, 5], [1, 5], [2, 5]]},
        "jax": {"error": "exit status 1: no JAX"},
    }
    monkeypatch.setattr("bench.stacks.command._run", lambda name, *_: results[name])
    assert main([*OPTIONS, "--stacks", "shard,jax", "--folder", str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert "waits of at most 3%: missed by shard" in printed
    assert "shard: not every row came once in each epoch" in printed
    assert "jax: exit status 1: no JAX" in printed


def test_bad_options_are_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stacks", "--stacks", "keras"]) == 2
    assert "--stacks keras: choose from shard, " in capsys.readouterr().err
    assert main(["stacks", "--epochs", "4"]) == 2
