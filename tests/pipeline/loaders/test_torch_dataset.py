"""as_torch_dataset: DataLoader workers divide a shard and preserve its stream, epochs and states."""

from __future__ import annotations

import itertools
import os
import pickle
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, get_worker_info
from torchdata.stateful_dataloader import StatefulDataLoader

import windrow
from tests.pipeline.loaders.torch_streams import (
    BATCH,
    LOADER_WARNINGS,
    ROWS,
    make_loader,
    read_stream,
    take_rows,
)
from windrow.core.errors import PlanError

pytestmark = LOADER_WARNINGS


@pytest.mark.parametrize(
    ("workers", "options"),
    [
        (0, {}),
        (1, {}),
        (2, {}),
        (3, {"persistent_workers": True}),
        # test_ray_workers_share_one_run starts workers this way, too
        pytest.param(2, {"multiprocessing_context": "spawn"}, marks=pytest.mark.nightly),
        pytest.param(
            2,
            {"multiprocessing_context": "forkserver", "persistent_workers": True},
            marks=pytest.mark.nightly,
        ),
    ],
)
@pytest.mark.parametrize("equal", [True, False, "pad"])
def test_stream_does_not_depend_on_workers(
    pipe: windrow.DatasetPipeline, workers: int, options: dict[str, Any], equal: Any
) -> None:
    if "multiprocessing_context" in options and equal is not True:
        pytest.skip("new interpreters are slow, and do not differ")
    for trainer in range(2):
        expected = read_stream(pipe.split(2, equal=equal)[trainer])
        with pipe.split(2, equal=equal)[trainer] as shard:
            loader = make_loader(shard.as_torch_dataset(batch_size=BATCH), workers, **options)
            assert [take_rows(loader) for _ in range(3)] == expected
            assert len(loader) == len(expected[0])
            if not workers:
                with pytest.raises(PlanError, match=r"all 3 epochs of shard . have been read"):
                    next(iter(loader))


def test_abandoned_pass_counts_as_consumed(pipe: windrow.DatasetPipeline, shard: windrow.Shard) -> None:
    expected = read_stream(pipe.split(2, equal=True)[1])
    loader = make_loader(shard.as_torch_dataset(batch_size=BATCH), 2)
    assert take_rows(itertools.islice(loader, 3)) == expected[0][:3]
    assert take_rows(loader) == expected[1]


@pytest.mark.parametrize("workers", [0, 2])
def test_state_after_batches_resumes_anywhere(pipe: windrow.DatasetPipeline, workers: int) -> None:
    whole = read_stream(pipe.split(1)[0])
    with pipe.split(2, equal=True)[0] as shard:
        dataset = shard.as_torch_dataset(batch_size=BATCH)
        loader = make_loader(dataset, workers)
        assert dataset.state_after(0)["epoch"] == 0
        take_rows(loader)
        for taken, _ in enumerate(loader, 1):
            if taken == 5:
                break
        state = dataset.state_after(5)
    rest = list(itertools.chain.from_iterable(whole[1]))[5 * 2 * BATCH :]
    assert (state["epoch"], state["row"]) == (1, 5 * 2 * BATCH)
    # other numbers of trainers, workers and rows per batch
    for n, other, batch in ((1, 0, BATCH), (1, 3, 50), (3, 2, 8)):
        shards = pipe.split(n, state_dict=state)
        taken_rows = []
        for each in shards:
            with each:
                taken_rows.append(
                    [b["x"].tolist() for b in make_loader(each.as_torch_dataset(batch_size=batch), other)]
                )
        steps = itertools.zip_longest(*taken_rows, fillvalue=[])
        assert [x for step in steps for part in step for x in part] == rest


@pytest.mark.parametrize(
    ("workers", "taken"), [(0, 0), (0, 4), (0, 11), (2, 0), (2, 4), (2, 11), (3, 1), (3, 4), (3, 10)]
)
def test_stateful_loader_resumes_at_any_batch(
    pipe: windrow.DatasetPipeline, workers: int, taken: int
) -> None:
    expected = read_stream(pipe.split(2, equal=True)[1])
    with pipe.split(2, equal=True)[1] as shard:
        loader = StatefulDataLoader(
            shard.as_torch_dataset(batch_size=BATCH), batch_size=None, num_workers=workers
        )
        assert take_rows(loader) == expected[0]
        assert take_rows(itertools.islice(loader, taken)) == expected[1][:taken]
        state = pickle.loads(pickle.dumps(loader.state_dict()))
    with pipe.split(2, equal=True)[1] as shard:
        dataset = shard.as_torch_dataset(batch_size=BATCH)
        loader = StatefulDataLoader(dataset, batch_size=None, num_workers=workers)
        loader.load_state_dict(state)
        assert take_rows(loader) == expected[1][taken:]
        assert take_rows(loader) == expected[2]


@pytest.mark.nightly
@pytest.mark.parametrize("balance", [None, windrow.Balance("cost", rows="free")])
def test_ray_workers_share_one_run(
    pipe: windrow.DatasetPipeline, ray_local: Any, balance: windrow.Balance | None
) -> None:
    expected = [read_stream(shard, balance=balance) for shard in pipe.split(2, equal=True)]
    on_ray = pipe.options(executor="ray", progress=False)
    for trainer, shard in enumerate(on_ray.split(2, equal=True)):
        with shard:
            dataset = shard.as_torch_dataset(BATCH, balance=balance)
            loader = make_loader(dataset, 2, multiprocessing_context="spawn", persistent_workers=True)
            assert [take_rows(loader) for _ in range(2)] == expected[trainer][:2]


def test_fork_of_a_process_on_ray_is_an_error(pipe: windrow.DatasetPipeline, ray_local: Any) -> None:
    with pipe.options(executor="ray", progress=False).iterator() as shard:
        loader = make_loader(shard.as_torch_dataset(BATCH), 1, multiprocessing_context="fork")
        with pytest.raises(
            PlanError, match=r"forked from one that is connected to Ray.*multiprocessing_context"
        ):
            next(iter(loader))


class _KilledAtSecondBatch(IterableDataset[Any]):
    """A dataset of which worker 1 is killed before its second batch, with nothing of it on the way to the trainer.

    Killed at another moment, it could hold a lock of torch's queues, or tensors that the trainer has yet to fetch.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        assert worker is not None
        for number, batch in enumerate(self.dataset):
            if worker.id == 1 and number == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch


def test_statistics_without_workers_are_those_of_the_shard(shard: windrow.Shard) -> None:
    dataset = shard.as_torch_dataset(batch_size=BATCH)
    batches = len(take_rows(make_loader(dataset, 0)))
    assert (shard.stats().batches, shard.stats().epochs) == (batches, 1)
    assert dataset.stats().rows == shard.stats().rows == ROWS // 2
    assert set(dataset.timeline().idle) == set(shard.timeline().idle) == {1}


def _with_rows_read(batch: Any) -> tuple[int, tuple[int, int]]:
    info: Any = get_worker_info()
    return info.id, (info.dataset.stats().rows, len(info.dataset.timeline().idle))


@pytest.mark.parametrize(
    ("workers", "who"), [(1, "1 worker of a DataLoader reads"), (2, "2 workers of a DataLoader read")]
)
def test_statistics_say_that_workers_read_and_where_their_own_are(
    shard: windrow.Shard, workers: int, who: str
) -> None:
    dataset = shard.as_torch_dataset(batch_size=BATCH)
    read = dict(make_loader(dataset, workers, collate_fn=_with_rows_read))
    assert sum(rows for rows, _ in read.values()) == ROWS // 2
    assert len(read) == workers
    assert all(trainers > 0 for _, trainers in read.values()), "a worker's timeline has its own reader"
    stats = shard.stats()
    assert stats.loader_workers == workers
    assert str(stats).startswith(f"shard 1: {who} this shard in other processes")
    assert (stats.bottleneck.cause, stats.bottleneck.sentence in str(stats)) == ("other", True)
    with pytest.raises(PlanError, match=r"in a worker, as torch\.utils\.data\.get_worker_info"):
        dataset.stats()
    with pytest.raises(PlanError, match=r"in a worker, as .*dataset\.timeline\(\)"):
        dataset.timeline()
    with pytest.raises(
        PlanError, match=r"of shard 1: the DataLoader's workers read it\. Call timeline\(\) in one"
    ):
        shard.timeline()
    # the last pass counts
    assert len(take_rows(make_loader(dataset, 0)))
    assert (shard.stats().loader_workers, shard.stats().rows) == (0, ROWS // 2)


def test_killed_worker_is_an_error_of_torch(shard: windrow.Shard) -> None:
    dataset = _KilledAtSecondBatch(shard.as_torch_dataset(batch_size=BATCH))
    batches: Any = iter(make_loader(dataset, 2, prefetch_factor=1))
    # torch's handler raises wherever this thread is, again and again until the worker is reaped: without it, torch
    # looks every few seconds
    handler = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        with pytest.raises(RuntimeError, match=r"DataLoader worker .* exited unexpectedly"):
            take_rows(batches)
    finally:
        # the handler would report the killed worker once more, in the middle of something else, when the others end
        batches._shutdown_workers()
        signal.signal(signal.SIGCHLD, handler)


def test_bad_use(shard: windrow.Shard, pipe: windrow.DatasetPipeline) -> None:
    with pytest.raises(TypeError, match=r"as_torch_dataset\(batch_size=...\) return what frameworks take"):
        next(iter(DataLoader(shard)))  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="batch_size=0 must be"):
        shard.as_torch_dataset(batch_size=0)
    dataset = shard.as_torch_dataset(batch_size=BATCH)
    with pytest.raises(PlanError, match="pass it batch_size=None"):
        next(iter(DataLoader(dataset)))
    with pytest.raises(ValueError, match="shuffle"):
        DataLoader(dataset, batch_size=None, shuffle=True)
    with pytest.raises(ValueError, match="sampler"):
        DataLoader(dataset, batch_size=None, sampler=DistributedSampler(dataset, 2, 0))
    with pytest.raises(PlanError, match="shard 1 is read through as_torch_dataset"):
        shard.iter_batches()
    with pytest.raises(PlanError, match=r"state_after\(batches\) returns the state"):
        shard.state_dict()
    with pytest.raises(PlanError, match="send the shard"):
        pickle.dumps(dataset)
    with pytest.raises(PlanError, match=r"state_after\(-1\)"):
        dataset.state_after(-1)
    skipping = pipe.options(executor="threads", on_error="skip", progress=False)
    with skipping.iterator() as other, pytest.raises(PlanError, match="StatefulDataLoader"):
        other.as_torch_dataset().state_after(1)


def test_length_is_unknown_before_rows_are_counted(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("x\n1\n2\n")
    with windrow.read_csv(tmp_path).repeat(1).options(executor="threads").iterator() as shard:
        dataset = shard.as_torch_dataset(batch_size=1)
        with pytest.raises(TypeError, match="not known before an epoch was read"):
            len(dataset)
        assert take_rows(make_loader(dataset, 0)) == [[1], [2]]
