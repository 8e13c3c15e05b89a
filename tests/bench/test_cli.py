from __future__ import annotations

import re
from argparse import ArgumentTypeError
from pathlib import Path

import pytest

from bench.cli import main
from bench.system.console import read_size


def test_read_size() -> None:
    assert (read_size("1.4GB"), read_size("256MiB")) == (1_400_000_000, 2**28)
    for text in ("12", "0GB", "-1GB", "3 parsecs"):
        with pytest.raises(ArgumentTypeError, match="is not a size: write a number and a unit"):
            read_size(text)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--peers", "spark"], "unknown system spark"),
        (["--peers", "none", "--executor", "none"], "nothing to measure"),
        (["--size", "14"], "argument --size: 14 is not a size"),
        (["--window", "14 rows"], "argument --window: 14 rows is not a size"),
        (["--epochs", "0"], "argument --epochs: 0 must be at least 1"),
        (["--cached"], "unrecognized arguments: --cached"),
    ],
)
def test_bad_options_give_a_one_line_error(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["throughput", *arguments]) == 2
    assert message in capsys.readouterr().err


# on every change CI runs `make demo`, which measures the same limits and windrow
@pytest.mark.nightly
@pytest.mark.timeout(120)
def test_limits_and_windrow_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--executor", "threads", "--peers", "scan,torch-scan", "--epochs", "2"]
    arguments += ["--trainers", "2", "--window", "500kB", "--batch-size", "1000"]
    status = main(["throughput", *arguments, "--size", "2MB", "--folder", str(tmp_path)])
    output = capsys.readouterr()
    assert status == 0, output
    assert "rows counted" in output.out
    assert output.out.count("yes (key)") == 2


@pytest.mark.nightly
@pytest.mark.ray
@pytest.mark.timeout(120)
def test_memory_is_measured_on_ray_and_a_plan_error_is_a_breach(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--window", "1MB", "--block", "500kB", "--batch-size", "1000", "--folder", str(tmp_path)]
    options += ["--object-store", "80MB", "--memory-limit", "1MB", "--epochs", "2"]
    status = main(["memory", "--size", "4MB", *options])
    output = capsys.readouterr().out
    ray_line = next(line for line in output.splitlines() if line.startswith("windrow ray"))
    assert "yes (key)" in ray_line
    # the limit of the store, nothing spilled, and an estimate
    assert re.match(r"windrow ray, 2 trainers +76 +0 +\d+ +\d+ ", ray_line), ray_line
    assert (status, "windrow threads: FAILED, PlanError" in output) == (1, True)
