"""`balance=` of the methods that iterate over batches, as a trainer uses it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import windrow
from windrow.pipeline.shard.shard import Shard

LENGTHS = np.maximum(1, np.exp(np.random.default_rng(3).normal(2, 1, 480))).astype(int)


@pytest.fixture(scope="module")
def pipe(tmp_path_factory: pytest.TempPathFactory) -> windrow.DatasetPipeline:
    path = tmp_path_factory.mktemp("data") / "rows.parquet"
    tokens = pa.array([[7] * length for length in LENGTHS.tolist()], pa.list_(pa.int32()))
    pq.write_table(pa.table({"id": range(480), "tokens": tokens}), path, row_group_size=40)
    ds = windrow.read_parquet(path, target_block_bytes=1).options(executor="threads", progress=False)
    return ds.window(blocks_per_window=3).repeat(2).random_shuffle_each_window(seed=7)


def _read(shards: list[Shard], *, columns: tuple[str, ...] = ("id",), **arguments: Any) -> list[list[Any]]:
    """By shard, its batches of one epoch."""
    with ThreadPoolExecutor(len(shards)) as threads:
        return list(threads.map(lambda shard: list(shard.iter_batches(columns=columns, **arguments)), shards))


def _rows(batches: Iterator[Any] | list[Any]) -> list[list[int]]:
    return [batch["id"].tolist() for batch in batches]


def test_rows_of_a_step_are_the_same_and_cost_about_the_same(pipe: windrow.DatasetPipeline) -> None:
    plain = [_rows(batches) for batches in _read(pipe.split(4), batch_size=8)]
    shards = pipe.split(4)
    even = [_rows(batches) for batches in _read(shards, batch_size=8, balance=windrow.Balance("tokens"))]
    steps = list(zip(*even, strict=True))
    for step, expected in zip(steps, zip(*plain, strict=True), strict=True):
        assert sorted(chain.from_iterable(step)) == sorted(chain.from_iterable(expected))
        assert [len(batch) for batch in step] == [len(batch) for batch in expected]
    costs = np.array([[LENGTHS[batch].sum() for batch in step] for step in steps])
    found = shards[0].stats().run.imbalance[0]
    assert found == pytest.approx((costs.max(axis=1) / costs.mean(axis=1)).mean())
    assert "of the mean (epoch" in str(shards[0].stats())


def test_statistics_are_of_the_epoch_that_the_trainer_is_in(pipe: windrow.DatasetPipeline) -> None:
    with pipe.iterator() as shard:
        batches = shard.iter_batches(batch_size=8, balance=windrow.Balance("tokens"))
        next(batches)
        stats = shard.stats()
        # as if later epochs had been prepared
        ahead = replace(stats, run=replace(stats.run, imbalance={0: 1.25, 1: 1.5}))
        assert "costs 1.250 of the mean (epoch 0)" in str(ahead)


@pytest.mark.parametrize("arguments", [{"batch_size": 8}, {"token_budget": 400}])
def test_ranks_that_read_for_themselves_get_what_shards_of_one_run_get(
    pipe: windrow.DatasetPipeline, arguments: dict[str, Any]
) -> None:
    balance = windrow.Balance("tokens", "length ** 2")
    together = _read(pipe.split(3, equal=True), balance=balance, **arguments)
    ranks = [pipe.shard(rank=rank, world_size=3) for rank in range(3)]
    assert list(map(_rows, _read(ranks, balance=balance, **arguments))) == list(map(_rows, together))


def test_microbatches_and_what_the_iterator_tells(pipe: windrow.DatasetPipeline) -> None:
    balance = windrow.Balance("tokens", "length ** 2", rows="free", microbatches=3)
    with pipe.iterator() as shard:
        batches = shard.iter_torch_batches(24, columns=("id",), balance=balance)
        assert batches.part is None
        for batch in batches:
            ids = [part["id"].tolist() for part in batch]
            assert batches.part is not None
            assert batches.part.rows == tuple(map(len, ids))
            assert batches.part.costs == tuple(float((LENGTHS[part] ** 2).sum()) for part in ids)
        assert shard.stats().trainers[0].rows == 480


def test_even_batches_tell_their_costs_too(pipe: windrow.DatasetPipeline) -> None:
    with pipe.iterator() as shard:
        batches = shard.iter_batches(50, balance=windrow.Balance("tokens"))
        for batch in batches:
            assert batches.part is not None
            assert batches.part.rows == (len(batch["id"]),)
            assert batches.part.costs == (float(LENGTHS[batch["id"]].sum()),)


def test_a_state_goes_on_with_balance_or_without(pipe: windrow.DatasetPipeline) -> None:
    balance = windrow.Balance("tokens", rows="free")
    with pipe.iterator() as shard:
        first = [next(shard.iter_batches(60, balance=balance))["id"].tolist()]
        state = shard.state_dict()
    assert "balance" not in str(state)
    for other in (None, balance, windrow.Balance("tokens", "length ** 3")):
        shards = pipe.split(3)
        for shard in shards:
            shard.load_state_dict(state)
        found = [
            row
            for batches in _read(shards, batch_size=20, balance=other)
            for row in chain.from_iterable(_rows(batches))
        ]
        assert sorted(found + first[0]) == list(range(480))


def test_a_shard_behind_the_first_one_gets_its_rows(pipe: windrow.DatasetPipeline) -> None:
    balance = windrow.Balance("tokens")
    # 120 rows a window, so step 7 is in two of them
    behind, ahead = pipe.split(2)
    expected = [_rows(batches) for batches in _read([behind, ahead], batch_size=8, balance=balance)]
    behind, ahead = pipe.split(2)
    with ahead, behind:
        batches = [shard.iter_batches(8, columns=("id",), balance=balance) for shard in (behind, ahead)]
        for _ in range(8):
            for shard in batches:
                next(shard)
        state = ahead.state_dict()
    behind, ahead = pipe.split(2)
    ahead.load_state_dict(state)
    rest = ahead.iter_batches(8, columns=("id",), balance=balance)
    first = next(rest)["id"].tolist()
    # the windows that have been prepared do not hold what comes before
    found = _read([behind], batch_size=8, balance=balance)
    assert _rows(found[0]) == expected[0]
    assert [first, *_rows(list(rest))] == expected[1][8:]


def _lengthen(batch: dict[str, Any], rng: windrow.RowGenerator) -> dict[str, Any]:
    return {"id": batch["id"], "length": rng.integers(1, 100)}


def test_rows_that_are_random_are_measured_in_each_epoch() -> None:
    ds = windrow.range(200, block_rows=40).options(executor="threads", progress=False)
    random = ds.map_batches(_lengthen, rng=True).repeat(2).random_shuffle_each_window(seed=7)
    balance = windrow.Balance("length", rows="free")
    with random.iterator() as shard:
        list(shard.iter_batches(50))
        state = shard.state_dict()
    shards, later = random.split(2), random.split(2)
    _read(shards, batch_size=25, balance=balance)
    second = [_rows(batches) for batches in _read(shards, batch_size=25, balance=balance)]
    for shard in later:
        shard.load_state_dict(state)
    # a new run knows nothing of the first epoch
    assert [_rows(batches) for batches in _read(later, batch_size=25, balance=balance)] == second


def test_shards_have_to_agree(pipe: windrow.DatasetPipeline) -> None:
    one, other = pipe.split(2)
    batches = one.iter_batches(8, balance=windrow.Balance("tokens"))
    with pytest.raises(
        windrow.PlanError, match=r"balance=Balance\(column='tokens'.* asks for batch_size=8, drop_last"
    ):
        other.iter_batches(8)
    batches.close()


def test_uneven_batches_of_packed_sequences_are_transformed_and_counted_whole() -> None:
    # each sequence of 12 is a document, or twelve: one costs 144, the others 12
    documents = [12, *[1] * 36] * 5
    tokens = pa.array([[7] * length for length in documents], pa.list_(pa.int32()))
    pipe = windrow.from_arrow(pa.table({"tokens": tokens})).repeat(1).pack(12, ["tokens"])
    pipe = pipe.map_batches(lambda batch: {"sum": batch["tokens"].sum(axis=1)})
    pipe = pipe.options(executor="threads", progress=False)
    shards = pipe.split(2)
    balance = windrow.Balance("tokens", "length ** 2", rows="free")
    found = _read(shards, columns=("sum",), batch_size=2, balance=balance)
    assert [[len(batch["sum"]) for batch in batches] for batches in found] == [[1] * 5, [3] * 5]
    assert [shard.stats().trainer.rows for shard in shards] == [5, 15]


def test_each_source_of_a_mixture_is_balanced_by_itself(pipe: windrow.DatasetPipeline) -> None:
    mixed = windrow.mixture(
        {"a": pipe, "b": pipe}, {"a": 2, "b": 1}, seed=1, source_column="source", when_exhausted="stop"
    ).options(executor="threads", progress=False)
    found = []
    for balance in (None, windrow.Balance("tokens")):
        # the mixture ends within a step
        shards = mixed.split(4, equal=True)
        batches = _read(shards, columns=("id", "source"), batch_size=12, balance=balance)
        found.append([list(step) for step in zip(*batches, strict=True)])
    assert len(found[0]) == len(found[1]) > 20
    imbalances = []
    for plain, even in zip(*found, strict=True):
        for name in ("a", "b"):
            counts = [[(batch["source"] == name).sum() for batch in step] for step in (plain, even)]
            assert counts[0] == counts[1]
        rows = [
            sorted(
                zip(
                    *(
                        np.concatenate([batch[column] for batch in step]).tolist()
                        for column in ("source", "id")
                    ),
                    strict=True,
                )
            )
            for step in (plain, even)
        ]
        assert rows[0] == rows[1]
        costs = [[LENGTHS[batch["id"]].sum() for batch in step] for step in (plain, even)]
        imbalances.append([max(each) / np.mean(each) for each in costs])
    plain_mean, even_mean = np.mean(imbalances, axis=0)
    assert plain_mean > 1.3
    assert even_mean < 1.15


def test_what_is_refused(pipe: windrow.DatasetPipeline) -> None:
    balance = windrow.Balance("tokens")
    ids = windrow.range(10).repeat(1)
    with pytest.raises(
        windrow.PlanError, match="there is no column 'tokens' to balance by, but there are 'id'"
    ):
        ids.iter_batches(balance=balance)
    with pytest.raises(windrow.PlanError, match=r"must be a windrow\.Balance or None"):
        ids.iter_batches(balance="tokens")  # type: ignore[arg-type]
    packed = pipe.pack(8, ["tokens", "id"])
    with pytest.raises(
        windrow.PlanError, match=r"Balance\(column='id'\) is not a list column .* which are 'tokens':"
    ):
        packed.iter_batches(balance=windrow.Balance("id"))
    with pytest.raises(
        windrow.PlanError, match=r"with pack\(8\): every sequence has 8 tokens, so give batch_size="
    ):
        packed.iter_batches(token_budget=64, balance=balance)
    mixed = windrow.mixture({"a": pipe, "b": pipe}, {"a": 1, "b": 1}, seed=1)
    for arguments in ({"token_budget": 400}, {"group_by_length": 4}):
        with pytest.raises(windrow.PlanError, match=r"give mixture\(\) length_column='tokens'"):
            mixed.iter_batches(balance=balance, **arguments)  # type: ignore[arg-type]
    of_sequences = windrow.mixture({"a": packed, "b": packed}, {"a": 1, "b": 1}, seed=1)
    with pytest.raises(windrow.PlanError, match=r"Balance\(column='ids'\) is not a list column"):
        of_sequences.iter_batches(balance=windrow.Balance("ids"))
    with pytest.raises(windrow.PlanError, match=r"group_by_length= cannot be combined with pack\(8\)"):
        packed.iter_batches(balance=balance, group_by_length=4)
    with pipe.iterator() as shard:
        list(shard.iter_batches(100, balance=balance))
        with pytest.raises(windrow.PlanError, match="does not know which rows balance= gives to a shard"):
            shard.step_lineage(0)
