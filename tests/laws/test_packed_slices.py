"""Replicas of packed sequences get their slices of them, though only these tokens come to their host."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import windrow
from tests.laws.examples import examples
from tests.narrowing import narrowing_hosts
from windrow import DatasetPipeline, SequenceSlice, Shard

LENGTH = 12
Slices = tuple[Any, Any]
SLICES: Any = st.tuples(
    st.sampled_from([None, ["tokens"], ["document", "tokens"], ["document"]]),
    st.none()
    | st.sampled_from([1, 2, 3]).flatmap(
        lambda count: st.builds(
            SequenceSlice,
            index=st.integers(0, count - 1),
            count=st.just(count),
            layout=st.sampled_from(["contiguous", "head_tail"]),
        )
    ),
) | st.just(([], None))


BALANCES = st.builds(
    windrow.Balance,
    st.just("tokens"),
    st.just("length ** 2"),
    rows=st.sampled_from(["equal", "free"]),
    microbatches=st.sampled_from([1, 1, 3]),
)
PACKINGS: list[dict[str, Any]] = [
    {},
    {"boundaries": True},
    {"split_documents": False, "long_documents": "cut"},
    {"split_documents": False, "long_documents": "drop", "boundaries": True},
]


def make_pipe(documents: list[int], blocks: int, window: int, seed: int, **packing: Any) -> DatasetPipeline:
    rng = np.random.default_rng(seed)
    rows = pa.table(
        {
            "tokens": pa.array(
                [rng.integers(0, 1000, length).tolist() for length in documents], pa.list_(pa.int64())
            ),
            "document": np.arange(len(documents)),
        }
    )
    tables = [rows.slice(at, blocks) for at in range(0, len(documents), blocks)]
    pipe = windrow.from_arrow(tables, target_block_bytes=max(1, rows.nbytes * blocks // len(documents)))
    packed = pipe.window(blocks_per_window=window).repeat(2).random_shuffle_each_window(seed=seed)
    packed = packed.pack(LENGTH, columns=["tokens", "document"], **packing)
    return packed.options(executor="threads", progress=False)


def read(
    shard: Shard, batch_size: int, chosen: Slices, state: Any = None, balance: windrow.Balance | None = None
) -> list[tuple[int, Any]]:
    columns, sequence = chosen
    if state is not None:
        shard.load_state_dict(state)
    with shard:
        return [
            (epoch.number, {name: values.tolist() for name, values in part.items()})
            for epoch in shard.iter_epochs()
            for batch in epoch.iter_batches(batch_size, columns=columns, sequence=sequence, balance=balance)
            for part in (batch if isinstance(batch, list) else [batch])
        ]


def select(batch: tuple[int, Any], chosen: Slices) -> tuple[int, Any]:
    """What a replica gets of a whole batch."""
    (columns, sequence), (epoch, whole) = chosen, batch
    found = {name: np.array(whole[name]) for name in (whole if columns is None else columns)}
    if sequence is not None:
        at = sequence.positions(LENGTH)
        found = {name: values[:, at] for name, values in found.items()}
        rows = len(next(iter(found.values())))
        # positions of its own are kept
        found.setdefault("position_ids", np.tile(at, (rows, 1)))
    return epoch, {name: values.tolist() for name, values in found.items()}


@pytest.mark.usefixtures("small_runs")
@examples(40)
@given(
    documents=st.lists(st.integers(0, 40), min_size=1, max_size=40),
    blocks=st.integers(1, 9),
    window=st.integers(1, 4),
    seed=st.integers(0, 2**20),
    shards=st.integers(1, 3),
    equal=st.sampled_from([True, False, "pad"]),
    batch_size=st.integers(1, 4),
    chosen=st.lists(SLICES, min_size=2, max_size=3),
    steps=st.none() | st.integers(0, 5),
    packing=st.sampled_from(PACKINGS),
    balance=st.none() | BALANCES,
)
def test_replicas_get_their_slices(
    documents: list[int],
    blocks: int,
    window: int,
    seed: int,
    shards: int,
    equal: Any,
    batch_size: int,
    chosen: list[Slices],
    steps: int | None,
    packing: dict[str, Any],
    balance: windrow.Balance | None,
) -> None:
    pipe = make_pipe(documents, blocks, window, seed, **packing)
    whole = None, None
    state = None
    if steps is not None:
        plain = pipe.split(shards, equal=equal)
        for shard in plain:
            taken = iter(shard.iter_batches(batch_size))
            for _ in range(steps):
                next(taken, None)
        state = plain[0].state_dict()
        for shard in plain:
            shard.close()
    with ThreadPoolExecutor(shards) as pool:
        plain = pipe.split(shards, equal=equal)
        expected = list(pool.map(lambda shard: read(shard, batch_size, whole, state, balance), plain))
    with narrowing_hosts(), ThreadPoolExecutor(shards * len(chosen)) as pool:
        made = pipe.split(shards, equal=equal, replicas=len(chosen))
        found = [
            [
                pool.submit(read, shard, batch_size, each, state, balance)
                for shard, each in zip(of_shard, chosen, strict=True)
            ]
            for of_shard in made
        ]
        for of_shard, batches in zip(found, expected, strict=True):
            for reading, each in zip(of_shard, chosen, strict=True):
                assert reading.result(60) == [select(batch, each) for batch in batches]


def test_replicas_of_a_packed_mixture_get_their_slices() -> None:
    sources = {name: make_pipe([31, 0, 7, 19, 40, 3, 12] * 3, 2, 2, seed) for seed, name in enumerate("ab")}
    pipe = windrow.mixture(sources, {"a": 2, "b": 1}, seed=7).options(executor="threads", progress=False)
    chosen: list[Slices] = [
        (["tokens"], SequenceSlice(1, 0, 2, "head_tail")),
        (None, SequenceSlice(1, 0, 2, "head_tail")),
    ]
    expected = [read(shard, 3, (None, None)) for shard in pipe.split(2, equal=True)]
    assert sum(map(len, expected)) > 4
    with narrowing_hosts() as fetched, ThreadPoolExecutor(4) as pool:
        shards = pipe.split(2, equal=True, replicas=2)
        found = [
            [pool.submit(read, shard, 3, each) for shard, each in zip(of_shard, chosen, strict=True)]
            for of_shard in shards
        ]
        for of_shard, batches in zip(found, expected, strict=True):
            for reading, each in zip(of_shard, chosen, strict=True):
                assert reading.result(60) == [select(batch, each) for batch in batches]
    assert {wanted.tokens for wanted in fetched} == {LENGTH}


@pytest.mark.usefixtures("small_runs")
@pytest.mark.parametrize("microbatches", [1, 2])
@pytest.mark.parametrize("seed", [2, 5])
@pytest.mark.parametrize("is_mixed", [False, True])
def test_all_replicas_select_the_same_half_of_balanced_sequences(
    microbatches: int, seed: int, is_mixed: bool
) -> None:
    """So that the other half does not cross, also of sequences that lie in two windows."""
    pipe = make_pipe([31, 2, 7, 19, 40, 3, 12, 5] * 6, 3, 1, seed)
    if is_mixed:
        sources = {"a": pipe, "b": make_pipe([31, 0, 7, 19, 40, 3, 12] * 5, 2, 1, seed)}
        pipe = windrow.mixture(sources, {"a": 2, "b": 1}, seed=7).options(executor="threads", progress=False)
    balance = windrow.Balance("tokens", "length ** 2", microbatches=microbatches)
    chosen: Slices = (["tokens"], SequenceSlice(1, 0, 2, "head_tail"))
    with ThreadPoolExecutor(2) as pool:
        plain = pipe.split(2, equal=True)
        expected = list(pool.map(lambda shard: read(shard, 4, (None, None), None, balance), plain))
    with narrowing_hosts() as fetched, ThreadPoolExecutor(4) as pool:
        shards = pipe.split(2, equal=True, replicas=2)
        found = [
            [pool.submit(read, shard, 4, chosen, None, balance) for shard in of_shard] for of_shard in shards
        ]
        for of_shard, batches in zip(found, expected, strict=True):
            assert len(batches) > 4
            for reading in of_shard:
                assert reading.result(60) == [select(batch, chosen) for batch in batches]
    # with microbatches, whole sequences cross
    slices = {each.sequence for wanted in fetched for each in wanted.selections}
    assert slices == ({chosen[1]} if microbatches == 1 else {None})
