from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.training import trainer as trainer_module
from bench.training.trainer import Computing, Trainer, TrainerResult, agree_on_maximum, remove_agreement
from tests.bench.training.test_results import REQUEST

EPOCHS = 6
REQUESTED = replace(REQUEST, rows=4, trainers=1, epochs=EPOCHS, batch_size=2)


class _Steps(Computing):
    """A launch takes 1 ms alone and 10 % longer beside the engine; 3 % is waiting for a core."""

    launched = 0
    waited = 0.0

    def run(self, launches: int) -> float:
        _Steps.launched += launches
        _Steps.waited += launches * 0.00003
        return launches * 0.0011

    def core_wait(self) -> float:
        return _Steps.waited

    def time_launch_alone(self) -> float:
        return 0.001


def read_epochs() -> Iterator[list[dict[str, Any]]]:
    for _ in range(EPOCHS):
        yield [{"key": torch.tensor([0, 1])}, {"key": torch.tensor([2, 3])}]


def train(request: Any) -> TrainerResult:
    return Trainer(request).train(read_epochs())


def test_computing_trainer_measures_its_slowdown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_module, "Computing", _Steps)
    request = replace(REQUESTED, computing=True)
    epochs = train(request).epochs
    assert [epoch.slowed for epoch in epochs[: request.paced_from]] == [None, None]
    assert [epoch.slowed for epoch in epochs[request.paced_from :]] == [pytest.approx(0.1)] * 4
    assert [epoch.coreless for epoch in epochs[request.paced_from :]] == [pytest.approx(0.03)] * 4
    assert _Steps.launched >= 2 * 4  # at least one per batch


def test_computing_step_leaves_half_of_the_other_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_module, "Computing", _Steps)
    paced = train(replace(REQUESTED, paced=True)).epochs
    two, four = (train(replace(REQUESTED, computing=True, cores=cores)).epochs for cores in (2, 4))
    assert [epoch.step_seconds > 0 for epoch in paced] == [False, False, True, True, True, True]
    own = two[1].end - two[1].start
    assert two[2].step_seconds == pytest.approx(own / 2 * 2 * 2)
    own = four[1].end - four[1].start
    assert four[2].step_seconds == pytest.approx(own / 2 * 2 * 4 / 3)


def test_trainers_agree_on_the_slowest_pace(tmp_path: Path) -> None:
    rendezvous = str(tmp_path / "rendezvous")
    maxima: dict[int, float] = {}

    def agree(rank: int) -> None:
        maxima[rank] = agree_on_maximum(rendezvous, 0.5 + rank, rank, 3, 30.0)

    threads = [threading.Thread(target=agree, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert maxima == {0: 2.5, 1: 2.5, 2: 2.5}
    remove_agreement(rendezvous)
    assert not list(tmp_path.iterdir())


def test_trainer_that_does_not_report_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="Timeout waiting for key: 1"):
        agree_on_maximum(str(tmp_path / "rendezvous"), 0.5, 0, 2, 0.1)


def test_computation_is_done_and_timed() -> None:
    computing = Computing()
    assert computing.run(3) > 0
    assert torch.equal(computing._matrices[2], torch.full((256, 256), 64.0))
