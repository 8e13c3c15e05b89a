"""What counts as an integer, and that every argument that is a size or a count takes the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import windrow
from windrow import PlanError
from windrow.core.integers import as_integer, check_count
from windrow.dataset.argument_checks import check_seed
from windrow.io.formats.image_pixels import check_size
from windrow.pipeline.delivery.delivery import Delivery
from windrow.pipeline.launch.launcher import find_rank


@pytest.mark.parametrize(
    "value", [3, np.int64(3), np.uint8(3), 3.0, np.float32(3), torch.tensor(3), np.array(3)], ids=repr
)
def test_integers_of_any_library_and_whole_floats_are_integers(value: Any) -> None:
    for taken in (as_integer(value), check_count(value, "n"), check_seed(value)):
        assert taken == 3
        assert type(taken) is int
    assert find_rank(value, value + 1) == (3, 4)
    delivery = Delivery(value, False, value, iter)
    assert (delivery.batch_rows, type(delivery.batch_rows)) == (3, int)
    assert (delivery.prefetch_batches, type(delivery.prefetch_batches)) == (3, int)


NO_INTEGERS = [
    True,
    np.True_,
    torch.tensor(True),
    3.5,
    np.float64(3.5),
    float("nan"),
    float("inf"),
    2.0**60,
    "3",
    None,
    torch.tensor(3.5),
    torch.tensor([3, 4]),
    3j,
]


@pytest.mark.parametrize("value", NO_INTEGERS, ids=repr)
def test_all_else_is_none(value: Any) -> None:
    assert as_integer(value) is None
    with pytest.raises(PlanError, match="n="):
        check_count(value, "n")


ARGUMENTS: dict[str, Callable[[Any], Any]] = {
    "bytes_per_window": lambda size: windrow.range(9).window(bytes_per_window=size),
    "blocks_per_window": lambda size: windrow.range(9).window(blocks_per_window=size),
    "times": lambda size: windrow.range(9).repeat(size),
    "seed": lambda size: windrow.range(9).window().random_shuffle_each_window(seed=size),
    "n": lambda size: windrow.range(9).split(size),
    "limit": lambda size: windrow.range(9).take(size),
    "to_arrow": lambda size: windrow.range(9).to_arrow(limit=size),
    "take_batch": lambda size: windrow.range(9).take_batch(size),
    "iter_batches": lambda size: list(windrow.range(9).iter_batches(size)),
    "prefetch_batches": lambda size: list(windrow.range(9).iter_batches(2, prefetch_batches=size)),
    "range": lambda size: windrow.range(size),
    "block_rows": lambda size: windrow.range(9, block_rows=size),
    "target_block_bytes": lambda size: windrow.from_items([1], target_block_bytes=size),
    "memory_limit": lambda size: windrow.range(9).options(memory_limit=size),
    "cache_limit": lambda size: windrow.range(9).options(cache="memory", cache_limit=size),
    "prefetch_windows": lambda size: windrow.range(9).options(prefetch_windows=size),
    "map_batches": lambda size: windrow.range(9).map_batches(len, batch_size=size)._plan,
    "size": lambda size: check_size((size, size)),
    "max_epoch": lambda size: [e.number for e in windrow.range(9).repeat(4).iter_epochs(size)],
    "rank": lambda size: windrow.range(9).window().shard(rank=size, world_size=7),
}
"""A call for each argument that is a size or a count."""


@pytest.mark.parametrize("name", ARGUMENTS)
def test_sizes_and_counts_accept_only_whole_floats(name: str) -> None:
    call = ARGUMENTS[name]
    assert repr(call(4.0)) == repr(call(4))
    for other in (4.5, True):
        with pytest.raises(PlanError, match=rf"\b{other!r}\b"):
            call(other)
