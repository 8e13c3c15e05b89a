"""How long a consumer waits while nothing moves."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch.distributed

import windrow
from windrow.pipeline.executors.base import Waiting, waiting_of
from windrow.pipeline.plan.job import Options


def test_the_default_and_the_option() -> None:
    assert waiting_of(Options()) == Waiting(60, 1800)
    assert waiting_of(Options(stall_timeout=300)) == Waiting(60, 300)
    assert waiting_of(Options(stall_timeout=10)) == Waiting(5, 10)


def test_the_default_is_below_that_of_nccl(tmp_path: Any) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/x", rank=0, world_size=1)
    try:
        assert waiting_of(Options()).fail_seconds < 600
        assert waiting_of(Options(stall_timeout=900)).fail_seconds == 900
    finally:
        torch.distributed.destroy_process_group()


def test_a_transform_that_never_returns_ends_the_wait() -> None:
    released = threading.Event()

    def wait(batch: dict[str, Any]) -> dict[str, Any]:
        released.wait(60)
        return batch

    ds = windrow.from_numpy({"x": np.arange(10)}).map_batches(wait)
    warned = pytest.warns(RuntimeWarning, match="shard 0 has waited 1 s")
    failed = pytest.raises(windrow.StallError, match="shard 0 has waited 2 s")
    with ds.options(executor="threads", stall_timeout=2).split(1)[0] as shard:
        try:
            with warned, failed:
                list(shard.iter_batches(4))
        finally:
            released.set()
