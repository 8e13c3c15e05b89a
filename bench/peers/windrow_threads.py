"""windrow on threads, in one process; several trainers are threads of it."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from bench.account import Account
from bench.estimate import MemoryEstimate
from bench.peers.windrow_chain import ShardEpochs, build_chain, import_all, promise_memory
from bench.request import Request
from bench.spans import Span
from bench.trainer import Progress, Trainer, TrainerResult

__all__ = ["WindrowThreads"]


class WindrowThreads:
    """One engine, a shard a trainer."""

    def __init__(self, request: Request, progress: Progress) -> None:
        self._request = request
        self._rows: dict[int, tuple[int, int]] = {}
        self._progress = progress
        self._trainers = [self._make_trainer(number) for number in range(request.trainers)]
        self._spans: list[Span] = []
        self._estimate: MemoryEstimate | None = None

    def _make_trainer(self, number: int) -> Trainer:
        def note(epoch: int, rows: int) -> None:
            self._rows[number] = (epoch, rows)
            seen = list(self._rows.values())
            lowest = min(epoch for epoch, _ in seen)
            self._progress(lowest, sum(rows for epoch, rows in seen if epoch == lowest))

        return Trainer(self._request, f"trainer {number}", note)

    def prepare(self) -> None:
        """Import torch, and what reading needs."""
        import torch

        import_all()
        torch.set_num_threads(1)

    def run(self) -> Sequence[TrainerResult]:
        """Plan, split, and consume every shard in its own thread."""
        chain = build_chain(self._request, "threads")
        self._estimate = promise_memory(chain, self._request)
        shards = chain.split(self._request.trainers, equal=self._request.equal)
        sources = [ShardEpochs(shard, self._request, tells_run=shard is shards[0]) for shard in shards]
        try:
            if len(sources) == 1:
                return [self._trainers[0].train(sources[0])]
            with ThreadPoolExecutor(len(sources)) as pool:
                return list(
                    pool.map(lambda pair: pair[0].train(pair[1]), zip(self._trainers, sources, strict=True))
                )
        finally:
            self._spans = [span for source in sources for span in source.spans()]

    def account(self) -> Account:
        """The promise, and reading and placing as the shards tell it."""
        return Account(self._spans, self._estimate)

    def close(self) -> None:
        """Nothing to stop."""
