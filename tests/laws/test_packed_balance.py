"""Law 11 for packed sequences: those of a step are divided by the sum over their documents, whatever the packing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby, zip_longest
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import windrow
from tests.laws.examples import examples
from windrow import Balance, DatasetPipeline, Shard

LENGTH, EOS, NOBODY = 12, -7, -1
FORMULAS: dict[str, Callable[[float], float]] = {
    "length": lambda length: length,
    "length ** 2": lambda length: length**2,
    "0 * length": lambda _: 0,
}


class Reader(NamedTuple):
    shards: int
    batch_size: int
    balance: Balance | None


BALANCES = st.builds(
    Balance,
    st.just("tokens"),
    st.sampled_from(sorted(FORMULAS)),
    rows=st.sampled_from(["equal", "free"]),
    microbatches=st.sampled_from([1, 1, 3]),
)
# n·B is 12 for all of them, so steps are the same
READERS = st.sampled_from([1, 2, 3, 4]).flatmap(
    lambda shards: st.builds(Reader, st.just(shards), st.just(12 // shards), st.none() | BALANCES)
)
PACKINGS: list[dict[str, Any]] = [
    {},
    {"eos": EOS},
    {"boundaries": True},
    {"split_documents": False, "long_documents": "cut", "boundaries": True},
    {"split_documents": False, "long_documents": "drop", "eos": EOS},
]


def double(batch: dict[str, Any]) -> dict[str, Any]:
    return {**batch, "twice": 2 * batch["tokens"]}


def make_pipe(
    documents: Sequence[int], blocks: int, window: int, seed: int | None, **packing: Any
) -> DatasetPipeline:
    tokens = [[1000 * number + at for at in range(length)] for number, length in enumerate(documents)]
    rows = pa.table({"tokens": pa.array(tokens, pa.list_(pa.int64())), "document": np.arange(len(documents))})
    tables = [rows.slice(at, blocks) for at in range(0, len(documents), blocks)]
    stored = windrow.from_arrow(tables, target_block_bytes=max(1, rows.nbytes * blocks // len(documents)))
    pipe = stored.window(blocks_per_window=window).repeat(2)
    pipe = pipe if seed is None else pipe.random_shuffle_each_window(seed=seed)
    pad: dict[str, Any] = {} if packing.get("split_documents", True) else {"pad": {"document": NOBODY}}
    packed = pipe.pack(LENGTH, columns=["tokens", "document"], **packing, **pad)
    return packed.options(executor="threads", progress=False)


def find_cost(documents: list[int], balance: Balance) -> float:
    """What a sequence costs, given the document of each of its tokens: those of a document stand together."""
    runs = [len(list(tokens)) for document, tokens in groupby(documents) if document != NOBODY]
    return float(sum(FORMULAS[balance.cost](length) for length in runs))


# by epoch and step, the microbatches of each shard: sequences as the tokens and the document of each
Steps = dict[int, list[list[list[Any]]]]


def read_one(shard: Shard, reader: Reader, most: int | None) -> tuple[dict[int, list[list[Any]]], Any]:
    """A shard's steps by epoch, each a list of microbatches, and its state behind ``most`` of them."""
    balance, found, steps = reader.balance, dict[int, list[list[Any]]](), 0
    with shard:
        for epoch in shard.iter_epochs():
            own = found.setdefault(epoch.number, [])
            batches = epoch.iter_batches(reader.batch_size, balance=balance)
            for batch in batches:
                parts = batch if isinstance(batch, list) else [batch]
                own.append([to_sequences(part) for part in parts])
                if balance is not None:
                    assert batches.part is not None
                    assert batches.part.rows == tuple(map(len, own[-1]))
                    expected = [sum(find_cost(each[1], balance) for each in part) for part in own[-1]]
                    assert batches.part.costs == pytest.approx(expected)
                steps += 1
                if steps == most:
                    return found, shard.state_dict()
    return found, None


def to_sequences(batch: dict[str, Any]) -> list[Any]:
    if "twice" in batch:
        assert (batch["twice"] == 2 * batch["tokens"]).all()
    tokens, documents = batch["tokens"].tolist(), batch["document"].tolist()
    return list(zip(tokens, documents, strict=True))


def read(
    pipe: DatasetPipeline, reader: Reader, state: Any = None, most: int | None = None
) -> tuple[Steps, Any]:
    """The steps by epoch, and the state of all shards behind ``most`` of them."""
    shards = pipe.split(reader.shards, equal=True, state_dict=state)
    with ThreadPoolExecutor(reader.shards) as pool:
        found = list(pool.map(lambda shard: read_one(shard, reader, most), shards))
    states = [state for _, state in found]
    assert all(state == states[0] for state in states)
    # all shards have the same number of steps
    epochs = {number: list(zip(*(own[number] for own, _ in found), strict=True)) for number in found[0][0]}
    return {number: [list(step) for step in steps] for number, steps in epochs.items()}, states[0]


def sequences_of(step: list[list[list[Any]]]) -> Counter[str]:
    return Counter(str(sequence) for batch in step for part in batch for sequence in part)


@pytest.mark.usefixtures("small_runs", "leaves_no_thread")
@examples(60)
@given(
    documents=st.lists(st.integers(0, 40), min_size=1, max_size=60),
    blocks=st.integers(1, 9),
    window=st.integers(1, 4),
    seed=st.none() | st.integers(0, 2**20),
    reader=READERS,
    other=READERS,
    most=st.none() | st.integers(1, 6),
    packing=st.sampled_from(PACKINGS),
    is_transformed=st.booleans(),
)
def test_steps_have_the_sequences_that_they_have_without(
    documents: list[int],
    blocks: int,
    window: int,
    seed: int | None,
    reader: Reader,
    other: Reader,
    most: int | None,
    packing: dict[str, Any],
    is_transformed: bool,
) -> None:
    pipe = make_pipe(documents, blocks, window, seed, **packing)
    pipe = pipe.map_batches(double) if is_transformed else pipe
    plain, _ = read(pipe, Reader(1, 12, None))
    first, state = read(pipe, reader, None, most)
    rest = {} if state is None else read(pipe, other, state)[0]
    for number, expected in plain.items():
        steps = [*first.get(number, []), *rest.get(number, [])]
        for step, whole in zip_longest(steps, expected):
            if whole is None or sum(sequences_of(whole).values()) == 12:
                assert sequences_of(step) == sequences_of(whole)
            else:
                # the last step: equal=True leaves out fewer sequences than there are shards
                left = sequences_of(whole) - sequences_of(step or [])
                assert not sequences_of(step or []) - sequences_of(whole)
                assert sum(left.values()) < max(reader.shards, other.shards)


@pytest.mark.parametrize("packing", PACKINGS, ids=str)
@pytest.mark.parametrize("rows", ["equal", "free"])
def test_costs_are_even(packing: dict[str, Any], rows: Any) -> None:
    rng = np.random.default_rng(5)
    documents = np.maximum(1, np.exp(rng.normal(1.2, 1, 900))).astype(int).tolist()
    pipe = make_pipe(documents, 50, 4, 3, **packing)
    balance = Balance("tokens", "length ** 2", rows=rows)

    def measure(steps: Steps) -> Any:
        """(steps, shards) what each batch costs."""
        return np.array(
            [
                [sum(find_cost(each[1], balance) for part in batch for each in part) for batch in step]
                for step in steps[0]
            ]
        )

    plain, found = (measure(read(pipe, Reader(4, 6, each))[0]) for each in (None, balance))
    assert plain.sum(axis=1).tolist() == found.sum(axis=1).tolist()
    excess = found.max(axis=1) / found.mean(axis=1)
    assert (found.max(axis=1) <= plain.max(axis=1)).all()
    assert excess.mean() < 1.02 < 1.1 < (plain.max(axis=1) / plain.mean(axis=1)).mean()


def test_the_imbalance_is_that_of_sequences() -> None:
    pipe = make_pipe([3, 9, 1, 7, 20, 2, 2, 5, 11, 6, 4, 4, 8, 1] * 6, 5, 2, 1)
    balance = Balance("tokens", "length ** 2")
    with ThreadPoolExecutor(3) as pool:
        shards = pipe.split(3, equal=True)
        parts = list(pool.map(lambda shard: _part_costs(shard, balance), shards))
    costs = np.array(parts).T
    expected = (costs.max(axis=1) / costs.mean(axis=1)).mean()
    assert shards[0].stats().run.imbalance[0] == pytest.approx(expected)
    assert len(costs) == 5


def _part_costs(shard: Shard, balance: Balance) -> list[float]:
    batches = shard.iter_batches(3, balance=balance)
    return [sum(batches.part.costs) for _ in batches if batches.part is not None]


def test_a_shard_behind_the_first_one_gets_its_sequences() -> None:
    pipe = make_pipe([3, 9, 1, 7, 20, 2, 2, 5, 11, 6, 4, 4, 8, 1] * 6, 5, 2, 1)
    balance = Balance("tokens", "length ** 2")
    expected, _ = read(pipe, Reader(2, 6, balance))
    behind, ahead = pipe.split(2, equal=True)
    _, state = read(pipe, Reader(2, 6, balance), None, 3)
    ahead.load_state_dict(state)
    rest = ahead.iter_batches(6, balance=balance)
    first = to_sequences(next(rest))
    # the windows that have been prepared do not hold what comes before
    with ThreadPoolExecutor(2) as pool:
        found = [
            pool.submit(lambda: [to_sequences(batch) for batch in behind.iter_batches(6, balance=balance)]),
            pool.submit(lambda: [first, *(to_sequences(batch) for batch in rest)]),
        ]
        own = [each.result(60) for each in found]
    behind.close()
    ahead.close()
    assert own[0] == [step[0][0] for step in expected[0]]
    assert own[1] == [step[1][0] for step in expected[0]][3:]
