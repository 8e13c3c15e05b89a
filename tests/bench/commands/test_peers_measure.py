from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench.cli import main

SMALL = [
    "--size",
    "2MB",
    "--epochs",
    "2",
    "--peer-epochs",
    "2",
    "--batch-size",
    "2000",
    "--executor",
    "threads",
]


@pytest.mark.nightly
@pytest.mark.timeout(120)
def test_all_parts_are_measured_and_missing_environment_is_a_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("no network")

    monkeypatch.setattr("bench.commands.peers.make_environment", fail)
    peers = ["--peers", "scan,torch-scan,grain", "--small-batch-size", "100"]
    status = main(["peers", *SMALL, *peers, "--folder", str(tmp_path)])
    output = capsys.readouterr().out
    assert status == 1, output
    assert output.splitlines().count("batches of 2,000") == 1
    assert output.splitlines().count("batches of 100") == 1
    assert "Grain: FAILED, no network" in output
    assert re.search(r"^versions: grain [\d.]+$", output, re.MULTILINE)
    assert output.count("windrow threads") == 8  # two tables per part
    assert output.count("yes (content)") == 4
    assert output.count("8.0 of 8.0") == 2


def test_unknown_part_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["peers", "--parts", "tokens,images", "--folder", str(tmp_path)]) == 2
    assert "argument --parts: images: choose from large, small, tokens, text" in capsys.readouterr().err


def test_throughput_names_the_missing_environment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--peers", "daft", "--executor", "none", "--size", "1MB", "--folder", str(tmp_path)]
    assert main(["throughput", *options]) == 2
    assert "there is no environment for daft" in capsys.readouterr().err
