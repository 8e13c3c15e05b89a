"""A local Ray session for the benchmark, and its trainer actors."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from bench.object_store import ObjectStoreMonitor
from bench.request import Request
from bench.spans import Span
from bench.trainer import Progress, Trainer, TrainerResult

__all__ = ["EpochSource", "start_ray", "start_trainers", "train_all"]

_POLL_SECONDS = 1.0


class EpochSource(Protocol):
    """Epochs of batches for a trainer actor, picklable before iteration."""

    def __iter__(self) -> Any:
        """Iterate over epochs, each an iterable of batches."""

    def spans(self) -> Sequence[Span]:
        """Spans of the source's own work, after the last epoch."""
        ...


def start_ray(request: Request) -> ObjectStoreMonitor:
    """Start a local cluster with as many CPUs as the scan uses, and monitor its object store."""
    import ray

    context = ray.init(
        address="local",  # never join another cluster on this machine
        num_cpus=request.cores,
        object_store_memory=request.object_store_bytes,
        include_dashboard=False,
        logging_level="error",
        log_to_driver=False,
        # free dead objects after 50 ms instead of 1 s; see "Tuning Ray" in the README
        _system_config={"free_objects_period_milliseconds": 50},
    )
    session = Path(context.address_info["session_dir"])
    return ObjectStoreMonitor(session, request.object_store_bytes, polls=request.watch_store)


class _TrainerActor:
    """A trainer in its own process; it takes no CPU slot, so that data tasks have all of them."""

    def __init__(self, request: Request, number: int, imports: Sequence[str]) -> None:
        import importlib

        for name in imports:
            importlib.import_module(name)
        self._seen = (0, 0)
        self._trainer = Trainer(request, f"trainer {number}", self._note)
        self._trainer.join(number)

    def ready(self) -> bool:
        return True

    def seen(self) -> tuple[int, int]:
        return self._seen

    def train(self, source: EpochSource) -> str:
        """Train; returns a file with the result, whose keys would fill much of a small object store."""
        result = self._trainer.train(source)
        result.spans.extend(source.spans())
        with tempfile.NamedTemporaryFile(prefix="windrow-bench-", delete=False) as file:
            pickle.dump(result, file)
        return file.name

    def _note(self, epoch: int, rows: int) -> None:
        self._seen = (epoch, rows)


def start_trainers(request: Request, imports: Sequence[str]) -> list[Any]:
    """Start the trainer actors and wait until they have imported what they need."""
    import ray

    actor = ray.remote(num_cpus=int(request.computing), max_concurrency=2)(_TrainerActor)
    actors = [actor.remote(request, number, imports) for number in range(request.trainers)]
    ray.get([trainer.ready.remote() for trainer in actors])
    return actors


def train_all(
    actors: Sequence[Any], sources: Iterable[EpochSource], progress: Progress
) -> list[TrainerResult]:
    """Let every actor consume its source; report the rows of the slowest trainer's epoch."""
    import ray

    running = [actor.train.remote(source) for actor, source in zip(actors, sources, strict=True)]
    waiting = list(running)
    while waiting:
        _, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=_POLL_SECONDS)
        if waiting:
            progress(*_sum_rows(ray.get([actor.seen.remote() for actor in actors])))
    return [_take_result(Path(path)) for path in ray.get(running)]


def _take_result(path: Path) -> TrainerResult:
    with path.open("rb") as file:
        result: TrainerResult = pickle.load(file)
    path.unlink()
    return result


def _sum_rows(seen: Sequence[tuple[int, int]]) -> tuple[int, int]:
    epoch = min(number for number, _ in seen)
    return epoch, sum(rows for number, rows in seen if number == epoch)


def make_collate(request: Request) -> Mapping[str, Any]:
    """Arguments of Ray Data's ``iter_torch_batches`` that drop strings, if there are any."""
    if request.only_tensors:
        return {}
    from ray.data.collate_fn import ArrowBatchCollateFn

    from bench.tensors import TableToTensors

    convert = TableToTensors(request.tensor_columns)

    class Collate(ArrowBatchCollateFn):  # type: ignore[misc, unused-ignore]
        def __call__(self, batch: Any) -> Any:
            return convert(batch)

    return {"collate_fn": Collate()}
