"""The chain that both windrow adapters measure, through the public surface only."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from importlib import import_module
from itertools import islice
from typing import Any

import pyarrow as pa

import windrow
from bench.estimate import MemoryEstimate, read_promise
from bench.request import Request
from bench.spans import Span

__all__ = ["KeepTensorColumns", "ShardEpochs", "build_chain", "convert_spans", "import_all", "promise_memory"]


# windrow itself imports what it is asked for
_IMPORTS = (
    "windrow.dataset.pipeline",
    "windrow.pipeline.shard.shard",
    "windrow.pipeline.delivery.tensors.column_tensors",
)


def build_chain(request: Request, executor: str) -> Any:
    """Parquet, windowed, repeated, shuffled.

    One epoch more than is measured, and left before it begins: while the last measured
    epoch is consumed the next one is prepared, as in every epoch before it.
    """
    options: dict[str, Any] = {} if request.block is None else {"target_block_bytes": request.block}
    dataset = windrow.read_parquet(list(request.paths), columns=list(request.columns), **options)
    chain: Any = dataset
    if request.window is not None and request.window.isdigit():
        chain = dataset.window(blocks_per_window=int(request.window))
    elif request.window is not None:
        chain = dataset.window(bytes_per_window=request.window)
    chain = chain.repeat(request.epochs + 1).random_shuffle_each_window(seed=request.seed)
    if not request.only_tensors:
        # a run at a time, on the workers; a collate_fn would do it for every batch
        chain = chain.map_batches(KeepTensorColumns(request.tensor_columns), batch_format="pyarrow")
    return chain.options(
        executor=executor,
        memory_limit=request.memory_limit,
        cache=request.cache,
        cache_limit=request.cache_limit,
    )


class KeepTensorColumns:
    """Leaves out what no tensor holds; timestamps become their int64 counts."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = list(columns)

    def __call__(self, table: pa.Table) -> pa.Table:
        """Keep the columns of one table; nothing is copied."""
        kept = table.select(self._columns)
        fields = [
            field.with_type(pa.int64()) if pa.types.is_timestamp(field.type) else field
            for field in kept.schema
        ]
        return kept.cast(pa.schema(fields))


def import_all() -> None:
    """Import what reading imports when it is first needed: idle memory is that with imports done."""
    names = ("fsspec.implementations.local", "pyarrow.dataset", "pyarrow.parquet", *_IMPORTS)
    for name in names:
        import_module(name)


def promise_memory(chain: Any, request: Request) -> MemoryEstimate:
    """What ``explain`` promises for the split and the batches that are measured."""
    return read_promise(chain.explain(request.trainers, equal=request.equal, batch_size=request.batch_size))


class ShardEpochs:
    """A shard's epochs as torch batches; handed to a trainer, in a thread or an actor.

    ``tells_run``: one of the shards also tells what the tasks behind all of them did.
    """

    def __init__(self, shard: Any, request: Request, *, tells_run: bool) -> None:
        self._shard = shard
        self._batch_size = request.batch_size
        self._epochs = request.epochs
        self._tells_run = tells_run

    def __iter__(self) -> Iterator[Any]:
        """Iterate over epochs, each an iterable of batches."""
        for epoch in islice(self._shard.iter_epochs(), self._epochs):
            yield epoch.iter_torch_batches(batch_size=self._batch_size)

    def spans(self) -> Sequence[Span]:
        """What the shard's statistics tell of reading and placing; closes the shard."""
        stats = self._shard.stats()
        self._shard.close()
        own = [span for span in stats.spans if span.kind != "wait"]  # the trainer notes its own waiting
        return convert_spans([*own, *(stats.run.spans if self._tells_run else ())])


def convert_spans(spans: Sequence[Any]) -> list[Span]:
    """Turn windrow's spans, in Unix time, into the benchmark's, on the monotonic clock."""
    offset = time.time() - time.monotonic()
    return [
        Span(
            kind="reduce" if span.kind == "reduce" else "map",
            window=(span.epoch, span.window),
            start=span.start_time - offset,
            end=span.stop_time - offset,
            lane=span.lane,
        )
        for span in spans
    ]
