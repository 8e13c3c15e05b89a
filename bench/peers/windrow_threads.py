"""windrow on threads, in one process; trainers are threads of it."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from bench.estimate import MemoryEstimate
from bench.peers.windrow_pipeline import ShardEpochs, build_pipeline, estimate_memory, import_all
from bench.request import Request
from bench.run_details import RunDetails
from bench.spans import Span
from bench.trainer import Progress, Trainer, TrainerResult

__all__ = ["WindrowThreads"]


class WindrowThreads:
    """One run with one shard per trainer."""

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
        """Import torch and the modules that reading needs."""
        import torch

        import_all()
        torch.set_num_threads(1)

    def run(self) -> Sequence[TrainerResult]:
        """Plan, split, and consume every shard in its own thread."""
        pipeline = build_pipeline(self._request, "threads")
        self._estimate = estimate_memory(pipeline, self._request)
        shards = pipeline.split(self._request.trainers, equal=self._request.equal)
        sources = [
            ShardEpochs(shard, self._request, includes_run_spans=shard is shards[0]) for shard in shards
        ]
        try:
            if len(sources) == 1:
                return [self._trainers[0].train(sources[0])]
            with ThreadPoolExecutor(len(sources)) as pool:
                return list(
                    pool.map(lambda pair: pair[0].train(pair[1]), zip(self._trainers, sources, strict=True))
                )
        finally:
            self._spans = [span for source in sources for span in source.spans()]

    def details(self) -> RunDetails:
        """The memory estimate, and the shards' spans of reading and placing."""
        return RunDetails(self._spans, self._estimate)

    def close(self) -> None:
        """Nothing to stop."""
