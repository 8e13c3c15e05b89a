"""as_torch_dataset with a balance or a token budget: workers divide steps as they divide batches."""

from __future__ import annotations

import itertools
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import windrow
from tests.pipeline.loaders.torch_streams import BATCH, LOADER_WARNINGS, make_loader, read_stream, take_rows
from windrow.core.errors import PlanError
from windrow.pipeline.loaders import torch_dataset

pytestmark = LOADER_WARNINGS

BALANCES = st.builds(
    windrow.Balance,
    st.just("cost"),
    st.sampled_from(["length", "length ** 2"]),
    rows=st.sampled_from(["equal", "free"]),
    microbatches=st.sampled_from([1, 1, 3]),
)


def _divide(shards: list[windrow.Shard], states: list[Any] | None = None, **arguments: Any) -> list[Any]:
    """The pass of each of some workers of a trainer, which are in this process; worker w reads ``shards[w]``."""
    passes: list[Any] = []
    for worker, shard in enumerate(shards):
        info = partial(SimpleNamespace, id=worker, num_workers=len(shards), seed=worker)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch_dataset, "get_worker_info", info)
            passes.append(iter(shard.as_torch_dataset(**arguments)))
        if states is not None:
            passes[-1].load_state_dict(states[worker])
    return passes


def _take_in_turn(passes: list[Any], first: int = 0, count: int = 10**6) -> list[Any]:
    """As a DataLoader does: batch k is that of worker k mod W, and a worker without one is passed over."""
    found: list[Any] = []
    left = list(range(len(passes)))
    for number in itertools.count(first):
        if not left or len(found) == count:
            return found
        worker = number % len(passes)
        if worker in left:
            batch = next(passes[worker], None)
            found += [] if batch is None else take_rows([batch])
            if batch is None:
                left.remove(worker)
    raise AssertionError


@given(
    trainers=st.integers(1, 3),
    workers=st.integers(2, 4),
    batch_size=st.integers(1, 40),
    equal=st.sampled_from([True, False, "pad"]),
    drop_last=st.booleans(),
    balance=BALANCES,
    group_steps=st.none() | st.integers(2, 4),
    data=st.data(),
)
def test_workers_divide_balanced_steps(
    pipe: windrow.DatasetPipeline,
    trainers: int,
    workers: int,
    batch_size: int,
    equal: Any,
    drop_last: bool,
    balance: windrow.Balance,
    group_steps: int | None,
    data: st.DataObject,
) -> None:
    arguments: dict[str, Any] = {"batch_size": batch_size, "drop_last": drop_last, "balance": balance}
    arguments["group_by_length"] = group_steps
    trainer = data.draw(st.integers(0, trainers - 1))

    def split() -> windrow.Shard:
        return pipe.split(trainers, equal=equal)[trainer]

    with split() as shard:
        expected = take_rows(shard.iter_torch_batches(**arguments))
    taken = data.draw(st.integers(0, len(expected)))
    divided, again = [split() for _ in range(workers)], [split() for _ in range(workers)]
    passes = _divide(divided, **arguments)
    assert _take_in_turn(passes, count=taken) == expected[:taken]
    states = [each.state_dict() for each in passes]
    assert _take_in_turn(_divide(again, states, **arguments), first=taken) == expected[taken:]
    for shard in [*divided, *again]:
        shard.close()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("microbatches", "group_steps"), [(1, 3), (2, None)])
def test_balanced_stream_does_not_depend_on_workers(
    pipe: windrow.DatasetPipeline, workers: int, microbatches: int, group_steps: int | None
) -> None:
    arguments: dict[str, Any] = {
        "batch_size": BATCH,
        "balance": windrow.Balance("cost", rows="free", microbatches=microbatches),
        "group_by_length": group_steps,
    }
    taken = 4
    expected = read_stream(pipe.split(2, equal=True)[1], **arguments)
    with pipe.split(2, equal=True)[1] as shard:
        dataset = shard.as_torch_dataset(**arguments)
        loader = StatefulDataLoader(dataset, batch_size=None, num_workers=workers)
        assert take_rows(loader) == expected[0]
        assert len(loader) == len(expected[0])
        assert take_rows(itertools.islice(loader, taken)) == expected[1][:taken]
        state, anywhere = loader.state_dict(), dataset.state_after(taken)
    for resumes_here in (True, False):
        shards = pipe.split(2, equal=True, state_dict=None if resumes_here else anywhere)
        with shards[1] as shard:
            loader = StatefulDataLoader(
                shard.as_torch_dataset(**arguments), batch_size=None, num_workers=workers
            )
            if resumes_here:
                loader.load_state_dict(state)
            assert take_rows(loader) == expected[1][taken:]
            assert take_rows(loader) == expected[2]


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_by_tokens_take_one_worker(pipe: windrow.DatasetPipeline, workers: int) -> None:
    arguments: dict[str, Any] = {"token_budget": 900, "balance": windrow.Balance("cost")}
    taken = 4
    expected = read_stream(pipe.split(2, equal=True)[1], **arguments)
    assert len({len(batch) for batch in expected[0]}) > 1
    with pipe.split(2, equal=True)[1] as shard:
        loader = StatefulDataLoader(shard.as_torch_dataset(**arguments), batch_size=None, num_workers=workers)
        assert take_rows(loader) == expected[0]
        assert take_rows(itertools.islice(loader, taken)) == expected[1][:taken]
        state = loader.state_dict()
    with pipe.split(2, equal=True)[1] as shard:
        loader = StatefulDataLoader(shard.as_torch_dataset(**arguments), batch_size=None, num_workers=workers)
        loader.load_state_dict(state)
        assert take_rows(loader) == expected[1][taken:]
        assert take_rows(loader) == expected[2]


def test_what_a_balanced_dataset_refuses(pipe: windrow.DatasetPipeline) -> None:
    balance = windrow.Balance("cost", microbatches=2)
    with pipe.iterator() as shard:
        with pytest.raises(PlanError, match="token_budget= needs balance="):
            shard.as_torch_dataset(token_budget=900)
        with pytest.raises(PlanError, match="batch_size=8 and token_budget=900 exclude each other"):
            shard.as_torch_dataset(8, token_budget=900, balance=balance)
        dataset = shard.as_torch_dataset(token_budget=900, balance=balance)
        divided: Any = iter(make_loader(dataset, 2))
        with pytest.raises(
            PlanError, match=r"workers cannot divide them\. Use a DataLoader with num_workers=1"
        ):
            next(divided)
        divided._shutdown_workers()
        with pytest.raises(TypeError, match="the epoch has no length"):
            len(dataset)
        with pytest.raises(PlanError, match=r"their number does not tell a state\. Use torchdata's"):
            dataset.state_after(1)
        with pytest.raises(PlanError, match="pass it batch_size=None"):
            next(iter(DataLoader(dataset)))
