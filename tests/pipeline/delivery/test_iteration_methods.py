"""Errors of iter(), len() and DataLoader on datasets and shards name the method to call instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch.utils.data import DataLoader

import windrow
from windrow import Epoch, PlanError, Shard

BATCHES = r"iter_batches\(batch_size=\.\.\.\) or iter_torch_batches\(batch_size=\.\.\.\)"
LOADER = (
    r"iter_torch_batches\(batch_size=\.\.\.\) replaces torch's DataLoader"
    r"(; as_loader\(batch_size=\.\.\.\) and as_torch_dataset\(batch_size=\.\.\.\) return what frameworks take)?"
)


def shard() -> Shard:
    return windrow.range(9).repeat(2).options(executor="threads").iterator()


def epoch() -> Epoch:
    return next(iter(shard().iter_epochs()))


LEVELS: dict[str, tuple[Callable[[], Any], bool, str]] = {
    "Dataset": (lambda: windrow.range(9), False, r"count\(\) returns the number of rows of an epoch"),
    "DatasetPipeline": (
        lambda: windrow.range(9).repeat(2),
        True,
        r"count\(\) returns the number of rows of an epoch",
    ),
    "Shard": (
        shard,
        True,
        r"steps_per_epoch\(batch_size\) or len\(iter_batches\(batch_size=\.\.\.\)\) returns",
    ),
    "Epoch": (
        epoch,
        False,
        r"len\(iter_batches\(batch_size=\.\.\.\)\) returns the number of batches of an epoch",
    ),
}


@pytest.mark.parametrize("level", LEVELS)
def test_iteration_error_names_the_methods(level: str) -> None:
    make, epochs, _ = LEVELS[level]
    calls = (r"iter_epochs\(\), " if epochs else "") + BATCHES
    given = make()
    message = rf"^'{level}' object is not iterable: iterate over what {calls} returns$"
    for use in (iter, list, tuple, lambda x: [*x]):
        with pytest.raises(TypeError, match=message):
            use(given)


@pytest.mark.parametrize("level", LEVELS)
def test_len_error_names_the_methods(level: str) -> None:
    make, _, counts = LEVELS[level]
    given = make()
    with pytest.raises(TypeError, match=rf"^object of type '{level}' has no len\(\): {counts}.*\. {LOADER}$"):
        len(given)
    # bool() does not call len()
    assert given


@pytest.mark.parametrize("level", LEVELS)
def test_data_loader_error_names_the_methods(level: str) -> None:
    given = LEVELS[level][0]()
    asks: list[Callable[[], Any]] = [
        lambda: DataLoader(given, shuffle=True),
        lambda: len(DataLoader(given)),
        lambda: list(DataLoader(given)),
        lambda: list(DataLoader(given, batch_size=None)),
        lambda: list(DataLoader(given, sampler=[0, 1])),
    ]
    for ask in asks:
        with pytest.raises(TypeError, match=rf"'{level}' .*{LOADER}$"):
            ask()


def test_shuffle_before_window_or_repeat_is_an_error() -> None:
    with pytest.raises(PlanError, match=r"call window\(\) or repeat\(\) first"):
        windrow.range(9).random_shuffle_each_window(seed=3)
