"""``python -m bench gpu``: on a machine without a GPU it says so, and on a device double it measures."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from bench.cli import main
from bench.commands import gpu as command
from bench.commands.gpu import LOADERS, CudaGpu, Reading, measure_wait

OPTIONS = ["gpu", "--size", "5MB", "--epochs", "2", "--batch-size", "16384"]


class Tick:
    """A mark that has been passed when it is made."""

    def __init__(self, clock: float) -> None:
        self.clock = clock

    def synchronize(self) -> None:
        pass


class SlowCpu(CudaGpu):
    """A device in main memory that works while the caller waits."""

    name = "a double"
    device = "cpu"

    def __init__(self) -> None:
        self._seconds = 0.0

    def copy_rate(self) -> float:
        return 1e9

    def prepare(self, seconds: float) -> None:
        self._seconds = seconds

    def work(self) -> None:
        time.sleep(self._seconds)

    def mark(self) -> Tick:
        return Tick(time.monotonic())

    def seconds(self, first: Any, last: Any) -> float:
        return float(last.clock - first.clock)


class Clock(SlowCpu):
    """A device with a clock of its own, on which work takes three seconds."""

    now = 0.0

    def pass_time(self, seconds: float) -> dict[str, Any]:
        self.now += seconds
        return {}

    def work(self) -> None:
        self.pass_time(3.0)

    def mark(self) -> Tick:
        return Tick(self.now)


def test_without_a_gpu_it_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "find_gpu", lambda: None)
    assert main(["gpu"]) == 0
    assert capsys.readouterr().out.startswith("no GPU: torch finds no CUDA device")


# new interpreters, which import torch, are slow
@pytest.mark.parametrize("loader", ["windrow", pytest.param("torch", marks=pytest.mark.nightly)])
def test_loaders_are_measured(
    loader: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "find_gpu", SlowCpu)
    assert main([*OPTIONS, "--loaders", loader, "--folder", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "a double: 1.0 GB/s out of pinned memory" in printed
    assert f"\n{loader} " in printed


def test_lost_rows_are_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "find_gpu", SlowCpu)
    whole = LOADERS["windrow"]
    monkeypatch.setitem(LOADERS, "windrow", lambda reading: (iter([next(each)]) for each in whole(reading)))
    assert main([*OPTIONS, "--loaders", "windrow", "--folder", str(tmp_path)]) == 1
    assert "windrow: not every row came once in each epoch" in capsys.readouterr().out


def test_the_share_of_waiting() -> None:
    gpu = Clock()

    def read(reading: Reading) -> Any:
        for _ in range(reading.epochs):
            yield (gpu.pass_time(1.0) for _ in range(10))

    reading = Reading((), (), 1, 2, "cpu", 1)
    # the first epoch is left out, and so is the wait for the first batch
    assert measure_wait(read, reading, gpu) == pytest.approx(9 / 39)


def test_bad_options_are_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpu", "--loaders", "keras"]) == 2
    assert "argument --loaders: keras: choose from windrow, torch, ray" in capsys.readouterr().err
    assert main(["gpu", "--epochs", "1"]) == 2
