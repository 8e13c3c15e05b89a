from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.training.trainer import Trainer, TrainerResult, agree_on_maximum, remove_agreement
from tests.bench.training.test_results import REQUEST

EPOCHS = 6
REQUESTED = replace(REQUEST, rows=4, trainers=1, epochs=EPOCHS, batch_size=2)


def read_epochs() -> Iterator[list[dict[str, Any]]]:
    for _ in range(EPOCHS):
        yield [{"key": torch.tensor([0, 1])}, {"key": torch.tensor([2, 3])}]


def train(request: Any) -> TrainerResult:
    return Trainer(request).train(read_epochs())


def test_paced_trainer_takes_as_long_as_the_slowest_batch() -> None:
    epochs = train(replace(REQUESTED, paced=True)).epochs
    assert [epoch.step_seconds > 0 for epoch in epochs] == [False, False, True, True, True, True]
    assert epochs[2].step_seconds == pytest.approx((epochs[1].end - epochs[1].start) / 2)
    assert epochs[2].end - epochs[2].start >= 2 * epochs[2].step_seconds


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
