"""What a trainer of a gang is told of its shards, and the errors of `run_gang`'s arguments."""

from __future__ import annotations

from typing import Any

import pytest

import windrow
from windrow.core.errors import PlanError
from windrow.pipeline.launch.gang import GangContext


def _make_context(shards: dict[str, Any]) -> GangContext:
    return GangContext(
        rank=0,
        world_size=1,
        local_rank=0,
        local_world_size=1,
        addresses=("127.0.0.1",),
        attempt=0,
        shards=shards,
        saved=None,
        _meeting=None,  # type: ignore[arg-type]
    )


def test_the_shard_of_a_single_dataset() -> None:
    shard = object()
    assert _make_context({"train": shard}).shard is shard


@pytest.mark.parametrize(("names", "text"), [((), "none"), (("train", "valid"), "'train', 'valid'")])
def test_other_numbers_of_datasets_are_named(names: tuple[str, ...], text: str) -> None:
    context = _make_context(dict.fromkeys(names))
    with pytest.raises(PlanError, match=f"a gang with one dataset, and it has {text}: use context.shards"):
        _ = context.shard


def test_unknown_strategies_are_refused_with_those_that_exist() -> None:
    with pytest.raises(PlanError, match=r"strategy='NEAR' must be one of '\w+', '\w+'"):
        windrow.run_gang(lambda context: None, 1, strategy="NEAR")  # type: ignore[arg-type]
