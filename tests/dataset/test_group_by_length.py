"""`group_by_length=` of the methods that iterate over batches, as a trainer uses it."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import windrow
from windrow.core.errors import PlanError, StateError

LENGTHS = np.maximum(1, np.exp(np.random.default_rng(3).normal(2, 1, 960))).astype(int)
BALANCE = windrow.Balance("tokens")


@pytest.fixture(scope="module")
def pipe(tmp_path_factory: pytest.TempPathFactory) -> windrow.DatasetPipeline:
    path = tmp_path_factory.mktemp("data") / "rows.parquet"
    tokens = pa.array([[7] * length for length in LENGTHS.tolist()], pa.list_(pa.int32()))
    table = pa.table({"id": range(960), "tokens": tokens, "length": LENGTHS, "half": LENGTHS / 2})
    pq.write_table(table, path, row_group_size=40)
    ds = windrow.read_parquet(path, target_block_bytes=1).options(executor="threads", progress=False)
    return ds.window(blocks_per_window=8).repeat(2).random_shuffle_each_window(seed=7)


def read(shards: list[windrow.Shard], steps: int | None = None, **arguments: Any) -> list[list[list[int]]]:
    """The rows of each step, by shard, of the rest of an epoch or of its first steps."""
    arguments = {"balance": BALANCE, "columns": ["id"], **arguments}

    def take(shard: windrow.Shard) -> list[list[int]]:
        batches = shard.iter_batches(**arguments)
        return [batch["id"].tolist() for batch in itertools.islice(batches, steps)]

    with ThreadPoolExecutor(len(shards)) as threads:
        return [list(step) for step in itertools.zip_longest(*threads.map(take, shards), fillvalue=[])]


def padding(steps: list[list[list[int]]]) -> float:
    batches = [LENGTHS[batch] for step in steps for batch in step]
    return float(
        1 - sum(batch.sum() for batch in batches) / sum(len(batch) * batch.max() for batch in batches)
    )


def test_rows_of_a_step_have_like_lengths(pipe: windrow.DatasetPipeline) -> None:
    shards = [pipe.split(2) for _ in range(2)]
    plain, grouped = (
        read(own, batch_size=8, group_by_length=steps) for own, steps in zip(shards, (None, 10), strict=True)
    )
    for own, steps in zip(shards, (plain, grouped), strict=True):
        stats = own[0].stats()
        assert stats.run.padding[0] == pytest.approx(padding(steps))
        assert "% padding if batches are padded" in str(stats)
    assert padding(grouped) < padding(plain) - 0.2
    rows = [[sorted(itertools.chain(*step)) for step in steps] for steps in (plain, grouped)]
    assert rows[0] != rows[1]
    assert [sorted(itertools.chain(*of)) for of in rows] == [list(range(960))] * 2
    # groups lie in windows of 320 rows, each of 20 steps: the first has two groups, of the same rows as without
    for group in (slice(0, 10), slice(10, 20)):
        assert sorted(itertools.chain(*rows[0][group])) == sorted(itertools.chain(*rows[1][group]))
    mean = [np.mean(LENGTHS[step]) for step in rows[1][:10]]
    assert mean not in (sorted(mean), sorted(mean)[::-1])


@pytest.mark.parametrize("n", [1, 2, 3])
def test_an_epoch_goes_on_with_other_numbers_of_trainers_and_rows(
    pipe: windrow.DatasetPipeline, n: int
) -> None:
    whole = read(pipe.split(2), batch_size=8, group_by_length=10)
    shards = pipe.split(2)
    assert read(shards, 13, batch_size=8, group_by_length=10) == whole[:13]
    state = shards[0].state_dict()
    assert state["groups"] == "10 steps of 16 rows by tokens"
    rest = read(pipe.split(n, state_dict=state), batch_size=5, group_by_length=3)
    order = [row for step in whole[13:] for row in sorted(itertools.chain(*step))]
    # rows go on in the same order: within steps before, only which rows share a step changes
    found = [sorted(itertools.chain(*step)) for step in rest]
    assert [len(step) for step in found[:-1]] == [5 * n] * (len(found) - 1)
    assert sorted(order) == sorted(itertools.chain(*found))


def test_a_state_in_the_middle_needs_the_column(pipe: windrow.DatasetPipeline) -> None:
    with pipe.iterator() as shard:
        for _ in itertools.islice(shard.iter_batches(8, balance=BALANCE, group_by_length=4), 5):
            pass
        state = shard.state_dict()
    for balance in (None, windrow.Balance("length")):
        with (
            pipe.iterator(state_dict=state) as shard,
            pytest.raises(StateError, match=r"row 40 were read with group_by_length=4 by column 'tokens'"),
        ):
            shard.iter_batches(8, balance=balance)
    with pipe.iterator(state_dict=state) as shard:
        assert sum(len(batch["id"]) for batch in shard.iter_batches(8, balance=BALANCE)) == 920
        # the next epoch is as it asks for: not in groups
        next(iter(shard.iter_batches(8)))
        assert shard.state_dict()["groups"] == ""


def test_an_epoch_that_began_without_groups_goes_on_without(pipe: windrow.DatasetPipeline) -> None:
    plain = read(pipe.split(2), batch_size=8)
    shards = pipe.split(2)
    read(shards, 5, batch_size=8)
    state = shards[0].state_dict()
    rest = pipe.split(2, state_dict=state)
    assert read(rest, batch_size=8, group_by_length=10) == plain[5:]
    assert padding(read(rest, batch_size=8, group_by_length=10)) < 0.4


def test_skipped_batches_are_those_that_would_have_been_read(pipe: windrow.DatasetPipeline) -> None:
    arguments: dict[str, Any] = {"batch_size": 8, "balance": BALANCE, "group_by_length": 10}
    whole = read(pipe.split(2), **arguments)
    shards = pipe.split(2)
    for shard in shards:
        shard.skip_batches(7, **arguments)
    assert read(shards, 3, **arguments) == whole[7:10]
    for shard in shards:
        # as for the last iteration
        shard.load_state_dict(shard.state_dict())
        shard.skip_batches(2, batch_size=8)
    assert read(shards, **arguments) == whole[12:]
    with pipe.split(2)[0] as shard:
        loader = shard.as_loader(**arguments, columns=["id"])
        loader.skip_batches(7)
        assert [batch["id"].tolist() for batch in loader] == [step[0] for step in whole[7:]]


def test_shards_with_states_of_other_groups_are_told(pipe: windrow.DatasetPipeline) -> None:
    states = []
    for steps in (2, 4):
        shards = pipe.split(2)
        read(shards, 4, batch_size=8, group_by_length=steps)
        states.append(shards[0].state_dict())
    left, right = pipe.split(2)
    left.load_state_dict(states[0])
    right.load_state_dict(states[1])
    batches = left.iter_batches(8, balance=BALANCE, group_by_length=2)
    next(batches)
    with pytest.raises(StateError, match="load the same state into all shards"):
        next(iter(right.iter_batches(8, balance=BALANCE, group_by_length=2)))
    batches.close()
    for shard in (left, right):
        shard.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"group_by_length": 1, "balance": BALANCE}, "must be an integer of 2 or more"),
        ({"group_by_length": 2.5, "balance": BALANCE}, "must be an integer of 2 or more"),
        ({"group_by_length": 4}, "needs balance="),
        ({"group_by_length": 4, "balance": BALANCE, "token_budget": 100}, "exclude each other"),
    ],
)
def test_what_is_refused(pipe: windrow.DatasetPipeline, arguments: dict[str, Any], message: str) -> None:
    with pipe.iterator() as shard:
        for method in (shard.iter_batches, shard.iter_torch_batches, shard.as_torch_dataset):
            with pytest.raises(PlanError, match=message):
                method(**arguments)


def test_a_state_that_names_no_groups_is_corrupt(pipe: windrow.DatasetPipeline) -> None:
    with (
        pipe.iterator() as shard,
        pytest.raises(StateError, match="groups='by tokens' is not what states hold"),
    ):
        shard.load_state_dict({**shard.state_dict(), "groups": "by tokens"})
