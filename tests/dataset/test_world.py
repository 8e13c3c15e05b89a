"""Which shard this process reads."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from windrow.core.errors import PlanError
from windrow.dataset.world import find_place


@pytest.fixture(autouse=True)
def _nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.delitem(sys.modules, "torch", raising=False)


def _torch(initialised: bool) -> Any:
    distributed = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: initialised,
        get_rank=lambda: 2,
        get_world_size=lambda: 4,
    )
    return SimpleNamespace(distributed=distributed)


def test_given() -> None:
    assert find_place(1, 3) == (1, 3)


def test_torch_comes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setitem(sys.modules, "torch", _torch(initialised=False))
    assert find_place(None, None) == (0, 2)
    monkeypatch.setitem(sys.modules, "torch", _torch(initialised=True))
    assert find_place(None, None) == (2, 4)
    assert find_place(0, 1) == (0, 1)


def test_torch_is_never_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    find_place(None, None)
    assert "torch" not in sys.modules


@pytest.mark.parametrize(
    ("rank", "world_size", "message"),
    [
        (None, None, r"RANK and WORLD_SIZE are not set. To mend it, call shard\(rank=..., world_size=...\)"),
        (0, None, r"shard\(rank=0, world_size=None\): give both, or neither"),
        (None, 2, r"shard\(rank=None, world_size=2\): give both, or neither"),
        (2, 2, r"rank=2 must be an integer from 0 to world_size - 1 = 1"),
        (-1, 2, r"rank=-1 must be"),
        (True, 2, r"rank=True must be"),
        (0, 0, r"world_size=0 must be an integer of 1 or more"),
    ],
)
def test_bad_places(rank: Any, world_size: Any, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        find_place(rank, world_size)


@pytest.mark.parametrize(
    ("rank", "world_size", "message"),
    [
        (None, "2", "RANK is not set"),
        ("1", None, "WORLD_SIZE is not set"),
        ("one", "2", "RANK='one', WORLD_SIZE='2' are no integers"),
        ("3", "2", "rank=3 must be"),
    ],
)
def test_bad_environment(
    monkeypatch: pytest.MonkeyPatch, rank: str | None, world_size: str | None, message: str
) -> None:
    for name, value in (("RANK", rank), ("WORLD_SIZE", world_size)):
        if value is not None:
            monkeypatch.setenv(name, value)
    with pytest.raises(PlanError, match=message):
        find_place(None, None)
