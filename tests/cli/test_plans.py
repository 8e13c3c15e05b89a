"""explain and shuffle-report: the same as the methods."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import windrow
from windrow.cli.main import main


def test_explanation_is_that_of_the_pipeline(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["explain", str(data), "--window", "50KB", "--target-block-bytes", "4KB", "--shards", "8"]
    more = ["--batch-size", "64", "--epochs", "3", "--seed", "5", "--memory", "1GiB", "--equal", "true"]
    assert main([*arguments, *more]) == 0
    pipe = windrow.read_parquet(data, target_block_bytes="4KB").window(bytes_per_window="50KB").repeat(3)
    pipe = pipe.random_shuffle_each_window(seed=5).options(memory_limit="1GiB")
    plan = pipe.explain(8, equal=True, batch_size=64)
    assert capsys.readouterr().out == f"{plan}\n"
    assert main([*arguments, *more, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["windows"], found["steps"]) == (plan.windows, plan.steps)
    assert found["budget"]["total_bytes"] == plan.budget.total_bytes


def test_explanation_of_other_shuffles(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(data), "--shuffle", "none", "--blocks-per-window", "3"]) == 0
    assert "endless epochs, stored order" in capsys.readouterr().out
    assert main(["explain", str(data), "--shuffle", "blocks", "--window", "all"]) == 1
    assert "bytes_per_window='all'" in capsys.readouterr().err
    assert main(["explain", str(data), "--memory", "1MiB"]) == 1
    assert "memory limit" in capsys.readouterr().err


def test_reports_compare_windows(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "shuffle-report",
        str(data),
        "--target-block-bytes",
        "1KB",
        "--window",
        "30KB",
        "--window",
        "all",
    ]
    picture = tmp_path / "quality.png"
    assert main([*arguments, "--json", "--batch-size", "100", "--seed", "7", "--plot", str(picture)]) == 0
    small, whole = json.loads(capsys.readouterr().out)
    assert picture.stat().st_size > 10_000
    dataset = windrow.read_parquet(data, target_block_bytes="1KB")
    pipe = dataset.window(bytes_per_window="30KB").repeat().random_shuffle_each_window(seed=7)
    assert small == json.loads(windrow.shuffle_report(pipe, batch_size=100).to_json())
    assert whole["recurrence"] == pytest.approx(1)
    assert whole["windows"] == 1
    assert main(arguments) == 0
    assert capsys.readouterr().out.count("verdict") == 2
