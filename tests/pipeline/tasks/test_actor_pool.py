"""`ActorPool` has the numbers of workers that it was given."""

from __future__ import annotations

import pytest

from windrow.core.errors import PlanError
from windrow.pipeline.tasks.actor_pool import ActorPool


@pytest.mark.parametrize(
    ("pool", "sizes", "text"),
    [
        (ActorPool(), (1, 1), "1 process"),
        (ActorPool(size=3), (3, 3), "3 processes"),
        (ActorPool(min_size=2), (2, 2), "2 processes"),
        (ActorPool(max_size=4), (1, 4), "1 to 4 processes"),
        (ActorPool(min_size=2, max_size=5), (2, 5), "2 to 5 processes"),
    ],
    ids=repr,
)
def test_sizes(pool: ActorPool, sizes: tuple[int, int], text: str) -> None:
    assert pool.sizes(cores=8) == sizes
    assert str(pool) == text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 2, "min_size": 1}, "give size, or the other two"),
        ({"size": 2, "max_size": 3}, "give size, or the other two"),
        ({"min_size": 3, "max_size": 2}, "max_size=2 is below min_size=3"),
        ({"size": 0}, "size"),
    ],
)
def test_sizes_that_contradict_each_other(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        ActorPool(**arguments)
