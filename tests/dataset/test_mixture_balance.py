"""`balance=` of mixtures: what batches and statistics tell, and how even costs become."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import windrow
from windrow.pipeline.plan import mixture

SHARDS, ROWS = 4, 16


@pytest.fixture(params=[2**26, 25_000], ids=["one round", "rounds"])
def pipe(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> windrow.DatasetPipeline:
    """Rows of three sources, in one round or in many, which steps cross."""
    monkeypatch.setattr(mixture, "_ROUND_BYTES", request.param)
    random = np.random.default_rng(5)

    def source(rows: int, first: int, seed: int) -> windrow.DatasetPipeline:
        lengths = random.lognormal(3, 1, rows).astype(np.int64) + 1
        table = pa.table(
            {"row": np.arange(first, first + rows), "tokens": [[0] * n for n in lengths.tolist()]}
        )
        return windrow.from_arrow(table).repeat(1).random_shuffle_each_window(seed=seed)

    sources = {"web": source(1200, 0, 1), "code": source(400, 10_000, 2), "math": source(200, 20_000, 3)}
    found = windrow.mixture(sources, {"web": 6, "code": 2, "math": 1}, seed=7, when_exhausted="drop")
    return found.options(executor="threads", progress=False)


def _parts(batch: Any) -> list[list[int]]:
    """The rows of each microbatch."""
    return [each["row"].tolist() for each in batch] if isinstance(batch, list) else [batch["row"].tolist()]


def _costs(batch: Any) -> list[float]:
    parts = batch if isinstance(batch, list) else [batch]
    return [float(sum(map(len, part["tokens"]))) for part in parts]


def _read(pipe: windrow.DatasetPipeline, balance: windrow.Balance | None) -> Iterator[tuple[Any, Any, Any]]:
    """The batches of each step, what is told of them, and the statistics so far."""
    shards = pipe.split(SHARDS)
    iterators = [shard.iter_batches(ROWS, balance=balance) for shard in shards]
    for batches in zip(*iterators, strict=True):
        yield batches, [each.part for each in iterators], shards[0].stats().run
    for shard in shards:
        shard.close()


@pytest.mark.parametrize("rows", ["equal", "free"])
@pytest.mark.parametrize("microbatches", [1, 3])
def test_parts_and_statistics(pipe: windrow.DatasetPipeline, rows: Any, microbatches: int) -> None:
    balance = windrow.Balance("tokens", rows=rows, microbatches=microbatches)
    plain = [batches for batches, _, _ in _read(pipe, None)]
    imbalances, lengths, padded = [], 0.0, 0.0
    steps = list(_read(pipe, balance))
    for number, (batches, parts, _) in enumerate(steps):
        before = sorted(row for batch in plain[number] for part in _parts(batch) for row in part)
        assert sorted(row for batch in batches for part in _parts(batch) for row in part) == before
        costs = [_costs(batch) for batch in batches]
        assert [part.costs for part in parts] == [tuple(each) for each in costs]
        assert [part.rows for part in parts] == [tuple(map(len, _parts(batch))) for batch in batches]
        spent = [sum(each) for each in costs]
        imbalances.append(max(spent) / np.mean(spent))
        for part in (part for batch in batches for part in (batch if isinstance(batch, list) else [batch])):
            sizes = list(map(len, part["tokens"]))
            lengths, padded = lengths + sum(sizes), padded + len(sizes) * max(sizes)
    # complete by the epoch's end
    told = steps[-1][2]
    assert told.imbalance == {0: pytest.approx(np.mean(imbalances))}
    assert told.padding == {0: pytest.approx(1 - lengths / padded)}


def test_costs_even_out(pipe: windrow.DatasetPipeline) -> None:
    found = []
    for balance in (None, windrow.Balance("tokens"), windrow.Balance("tokens", rows="free")):
        steps = [[sum(_costs(batch)) for batch in batches] for batches, _, _ in _read(pipe, balance)]
        found.append(np.mean([max(spent) / np.mean(spent) for spent in steps]))
    plain, equal, free = found
    assert equal < plain
    assert free < plain


def test_microbatches_are_even_over_all_sources(pipe: windrow.DatasetPipeline) -> None:
    """They are divided once it is known what rows of all sources cost."""
    balance = windrow.Balance("tokens", rows="free", microbatches=3)
    uneven = 0
    for _, parts, _ in list(_read(pipe, balance))[:-1]:
        for part in parts:
            assert len(part.costs) == 3
            uneven += max(part.costs) > 1.1 * sum(part.costs) / 3
    # where one row costs more than a third of its batch, and where a step lies in two rounds
    assert uneven < 50


@pytest.mark.parametrize("rows", ["equal", "free"])
def test_many_sources_do_not_favour_a_shard(rows: Any) -> None:
    """Each has few rows in a step, of which not always the same shard gets the most expensive one."""
    random = np.random.default_rng(5)
    sources = {
        f"source {number}": windrow.from_arrow(
            pa.table({"length": random.lognormal(3, 1, 100).astype(np.int64)})
        ).repeat(1)
        for number in range(20)
    }
    pipe = windrow.mixture(sources, dict.fromkeys(sources, 1), seed=7)
    spent = np.zeros(SHARDS)
    shards = pipe.options(executor="threads", progress=False).split(SHARDS)
    balance = windrow.Balance("length", rows=rows)
    for batches in zip(*(shard.iter_batches(10, balance=balance) for shard in shards), strict=True):
        spent += [batch["length"].sum() for batch in batches]
    for shard in shards:
        shard.close()
    assert spent.max() / spent.mean() < 1.1
