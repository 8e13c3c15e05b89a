"""The laws on Ray: a table of cases, each compared with the reference and with threads, batch by batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.laws.cases import Case
from tests.laws.reading import assert_delivers, read_shards
from windrow.core.errors import PlanError
from windrow.pipeline.executors.threads import ThreadsExecutor
from windrow.pipeline.shard.open_shards import open_shards
from windrow.shuffle.order.balance import Balance
from windrow.shuffle.order.epoch_plan import WindowCut
from windrow.shuffle.order.token_budget import TokenBudget

BLOCKS = WindowCut(blocks_per_window=2)
# their guarantees are also those of another case here, or of the same case on threads
AT_NIGHT = {
    "empty blocks",
    "one block, padded",
    "more shards than rows, padded",
    "drop_last",
    "stored order",
    "bytes windows",
    "dropped",
    "doubled",
    "one row, more shards",
    "filtered",
    "partly cached in memory",
    "filtered, cached in memory",
    "negated, cached on disk",
    "packed, padded, in stored order",
    "sorted, filtered, in stored order",
}
CASES = {
    "no rows": Case(()),
    "empty blocks": Case((0, 0, 0), BLOCKS, shards=2),
    "one row, more shards": Case((1,), shards=3, batch_rows=2),
    "one block, padded": Case((11,), shards=4, batch_rows=2, equal="pad"),
    "more shards than rows, padded": Case((1, 0, 1), shards=4, batch_rows=3, equal="pad"),
    "equal": Case((9, 1, 0, 13, 8), BLOCKS, shards=3, batch_rows=4, equal=True, epochs=2),
    "drop_last": Case((9, 1, 0, 13, 8), BLOCKS, shards=2, batch_rows=5, drop_last=True),
    "stored order": Case((9, 1, 0, 13, 8), BLOCKS, seed=None, shards=2, batch_rows=3),
    "bytes windows": Case(
        (20, 3, 17, 40, 1, 0, 25), WindowCut(bytes_per_window=400), shards=2, batch_rows=7, epochs=3
    ),
    "balanced": Case(
        (9, 1, 0, 13, 8), BLOCKS, shards=3, batch_rows=4, epochs=2, balance=Balance("x", "length ** 2")
    ),
    "balanced, free, filtered, padded": Case(
        (20,) * 8,
        BLOCKS,
        shards=2,
        batch_rows=6,
        equal="pad",
        change="filtered",
        epochs=2,
        balance=Balance("x", rows="free", microbatches=2),
    ),
    "grouped by length": Case(
        (20,) * 8, BLOCKS, shards=2, batch_rows=3, epochs=2, balance=Balance("x").with_groups(4)
    ),
    "by tokens, padded": Case(
        (20,) * 8,
        BLOCKS,
        shards=3,
        equal="pad",
        epochs=2,
        balance=Balance("x", "length ** 2").with_budget(TokenBudget(130, "drop")),
    ),
    "by tokens, cut and padded": Case(
        (20,) * 8,
        BLOCKS,
        shards=3,
        epochs=2,
        change="listed",
        balance=Balance("items", microbatches=2).with_budget(TokenBudget(90, "truncate", padded=True)),
    ),
    "filtered": Case((20,) * 8, BLOCKS, shards=2, batch_rows=6, equal="pad", change="filtered", epochs=2),
    "dropped": Case(
        (20,) * 8, BLOCKS, shards=3, batch_rows=40, change="dropped", epochs=2, prefetch_windows=2
    ),
    "doubled": Case((5, 0, 9, 30), BLOCKS, shards=2, batch_rows=8, change="doubled", seed=-3),
    "cached in memory": Case(
        (20, 3, 17, 40, 1, 0, 25), BLOCKS, shards=2, batch_rows=7, epochs=3, cache="memory"
    ),
    "partly cached in memory": Case(
        (20, 3, 17, 40, 1, 0, 25), BLOCKS, batch_rows=7, epochs=3, cache="memory", cache_limit=600
    ),
    "filtered, cached in memory": Case(
        (20,) * 8, BLOCKS, shards=2, batch_rows=6, change="filtered", epochs=3, cache="memory"
    ),
    "cached on disk": Case((20, 3, 17, 40, 1, 0, 25), BLOCKS, shards=2, batch_rows=7, epochs=3, cache="disk"),
    "negated, cached on disk": Case(
        (20,) * 4, BLOCKS, batch_rows=6, change="negated", epochs=3, cache="disk"
    ),
    "corrupt": Case((20,) * 8, BLOCKS, shards=3, batch_rows=6, epochs=2, corrupt=frozenset({0, 5})),
    "filtered, corrupt, cached in memory": Case(
        (20,) * 8,
        BLOCKS,
        shards=2,
        batch_rows=6,
        equal="pad",
        change="filtered",
        epochs=3,
        cache="memory",
        corrupt=frozenset({1, 2, 7}),
    ),
    "packed": Case((20, 3, 17, 40, 1, 0, 25), BLOCKS, shards=3, batch_rows=2, epochs=2, packed=7),
    "packed, padded, in stored order": Case(
        (20, 3, 17, 40), BLOCKS, shards=3, batch_rows=2, equal="pad", seed=None, packed=4
    ),
    "packed, balanced, padded": Case(
        (20, 3, 17, 40, 1, 0, 25),
        BLOCKS,
        shards=3,
        batch_rows=2,
        equal="pad",
        epochs=2,
        packed=7,
        balance=Balance("x", "length ** 2", rows="free", microbatches=2),
    ),
    "sorted": Case((20, 3, 17, 40, 1, 0, 25), BLOCKS, shards=3, batch_rows=2, epochs=2, sorted=True),
    "sorted, filtered, in stored order": Case(
        (20, 3, 17, 40),
        BLOCKS,
        shards=2,
        batch_rows=3,
        equal="pad",
        seed=None,
        change="filtered",
        sorted=True,
    ),
    "dropped, corrupt, packed": Case(
        (20,) * 8, BLOCKS, shards=2, equal=True, change="dropped", epochs=2, corrupt=frozenset({3}), packed=5
    ),
    "nothing prepared ahead": Case(
        (9, 1, 0, 13, 8), BLOCKS, shards=2, batch_rows=3, prefetch_windows=0, epochs=2
    ),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.nightly if name in AT_NIGHT else ()) for name in CASES]
)
def test_laws(ray_local: Any, name: str) -> None:
    case = CASES[name]
    readings = read_shards(case, "ray", order="alternately" if case.prefetch_windows == 2 else "together")
    assert_delivers(case, readings)
    here = read_shards(case, ThreadsExecutor(2))
    assert [reading.epochs for reading in readings] == [reading.epochs for reading in here]


@pytest.mark.parametrize("shards", [pytest.param(1, marks=pytest.mark.nightly), 2, 4])
def test_the_same_global_batches_for_any_number_of_shards(ray_local: Any, shards: int) -> None:
    case = Case((40, 31, 0, 7, 55), BLOCKS, shards=shards, batch_rows=12 // shards, drop_last=True)
    readings = read_shards(case, "ray")
    order = case.order(0)
    for step in range(len(order) // 12):
        batch = [x for reading in readings for x in reading.epochs[0][step]]
        assert batch == order[step * 12 : (step + 1) * 12]


def test_many_runs_and_tasks(ray_local: Any) -> None:
    case = Case((700_000,) * 3, WindowCut(blocks_per_window=2), shards=2, batch_rows=65_536)

    def read(executor: Any) -> list[np.ndarray]:
        shards = open_shards(case.job(executor), 2)
        try:
            iterators = [shard.iter_batches(case.batch_rows) for shard in shards]
            return [batch["x"] for step in zip(*iterators, strict=True) for batch in step]
        finally:
            for shard in shards:
                shard.close()

    there, here = read("ray"), read(ThreadsExecutor(2))
    assert len(there) == len(here)
    assert all(np.array_equal(a, b) for a, b in zip(there, here, strict=True))
    assert np.array_equal(np.sort(np.concatenate(there)), np.arange(2_100_000))


def test_early_stop_and_another_batch_size_in_the_next_epoch(ray_local: Any) -> None:
    case = Case((9, 1, 0, 13, 8), BLOCKS, epochs=2, batch_rows=2)
    (shard,) = open_shards(case.job("ray"), 1)
    with shard:
        first, second = case.assigned(0), case.assigned(1, 5)
        epochs = shard.iter_epochs()
        batches = next(epochs).iter_batches(2)
        assert [next(batches)["x"].tolist() for _ in range(3)] == first.batches[0][:3]
        assert [batch["x"].tolist() for batch in next(epochs).iter_batches(5)] == second.batches[0]


def test_two_batch_sizes_in_one_epoch(ray_local: Any) -> None:
    case = Case((9, 1, 0, 13, 8), BLOCKS, shards=2, batch_rows=2)
    first, second = open_shards(case.job("ray"), 2)
    with first, second:
        one = first.iter_batches(2)
        with pytest.raises(PlanError, match=r"batch_size=2, .* shard 1 asks for batch_size=3"):
            second.iter_batches(3)
        got = [[batch["x"].tolist() for batch in iterator] for iterator in (one, second.iter_batches(2))]
    assert got == case.assigned(0).batches
