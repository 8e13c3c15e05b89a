"""windrow on threads, and the pipeline that all windrow adapters measure, built with the public API only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import windrow
from bench.peers.base import Peer, import_modules
from bench.training.request import Request
from bench.training.trainer import Trainer, TrainerResult
from windrow import DatasetPipeline
from windrow.pipeline.plan.window_budget import Budget

# modules that windrow imports on first use
IMPORTS = (
    "fsspec.implementations.local",
    "pyarrow.dataset",
    "pyarrow.parquet",
    "windrow.dataset.dataset",
    "windrow.pipeline.shard.shard",
    "windrow.pipeline.delivery.tensors.column_tensors",
)


def build_pipeline(request: Request, executor: str) -> Any:
    """One epoch more than are measured, so that the next one is prefetched during the last too."""
    options: dict[str, Any] = {} if request.block is None else {"target_block_bytes": request.block}
    pipeline: Any = windrow.read_parquet(list(request.paths), columns=list(request.columns), **options)
    if request.window is not None and request.window.isdigit():
        pipeline = pipeline.window(blocks_per_window=int(request.window))
    elif request.window is not None:
        pipeline = pipeline.window(bytes_per_window=request.window)
    pipeline = pipeline.repeat(request.epochs + 1).random_shuffle_each_window(seed=request.seed)
    return pipeline.options(executor=executor, memory_limit=request.memory_limit, cache=request.cache)


def estimate_memory(pipeline: DatasetPipeline, request: Request) -> Budget:
    return pipeline.explain(request.trainers, equal=request.equal, batch_size=request.batch_size).budget


class ShardEpochs:
    """A shard's epochs as batches of tensors, or of Arrow for strings."""

    def __init__(self, shard: Any, request: Request) -> None:
        self._shard = shard
        self._batch_size = request.batch_size
        self._ragged = dict.fromkeys(request.list_columns, "offsets")
        self._is_arrow = request.content is not None and not request.list_columns
        self._epochs = request.epochs

    def __iter__(self) -> Iterator[Any]:
        for epoch in islice(self._shard.iter_epochs(), self._epochs):
            if self._is_arrow:
                yield epoch.iter_batches(batch_size=self._batch_size, batch_format="pyarrow")
            else:
                yield epoch.iter_torch_batches(batch_size=self._batch_size, ragged=self._ragged or None)

    def close(self) -> None:
        self._shard.close()


class WindrowThreads(Peer):
    """One run with one shard per trainer."""

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        self._trainers = [Trainer(request) for _ in range(request.trainers)]

    def prepare(self) -> None:
        import torch

        import_modules(*IMPORTS)
        torch.set_num_threads(1)

    def run(self) -> Sequence[TrainerResult]:
        pipeline = build_pipeline(self._request, "threads")
        self.estimate = estimate_memory(pipeline, self._request)
        shards = pipeline.split(self._request.trainers, equal=self._request.equal)
        sources = [ShardEpochs(shard, self._request) for shard in shards]
        try:
            if len(sources) == 1:
                return [self._trainers[0].train(sources[0])]
            with ThreadPoolExecutor(len(sources)) as pool:
                return list(pool.map(Trainer.train, self._trainers, sources))
        finally:
            for source in sources:
                source.close()
