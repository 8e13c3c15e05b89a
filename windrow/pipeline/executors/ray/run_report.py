"""What a coordinator tells an observer outside its job: plain values, which another version of windrow can read."""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from windrow.pipeline.coordinator.core import CoordinatorCore
from windrow.pipeline.executors.describe_pipeline import describe_pipeline, describe_source
from windrow.pipeline.plan.cursor import Place
from windrow.pipeline.plan.job import Job
from windrow.pipeline.plan.program import Program
from windrow.pipeline.statistics.bottleneck import PipelineFacts
from windrow.pipeline.statistics.phases import Span, TrainerStats
from windrow.pipeline.statistics.stats import RunStats, diagnose_run
from windrow.pipeline.timeline.lanes import merge_spans


def find_version() -> str:
    """The version of windrow in this process."""
    # no module of the package may import it as a whole
    return str(getattr(sys.modules.get(__name__.partition(".")[0]), "__version__", ""))


def describe_starter() -> dict[str, Any]:
    """Who starts a run, and when: this process, now."""
    return {
        "program": os.path.basename(sys.argv[0]) if sys.argv else "",
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "started": time.time(),
    }


class RunReporter:
    """Describes the run of a coordinator core; ``starter`` says who started it.

    Observers call it rarely, and each call is answered at once from what the coordinator knows.
    """

    def __init__(self, core: CoordinatorCore, starter: Mapping[str, Any]) -> None:
        self._core = core
        self._starter = dict(starter)
        # of a job, which becomes another one where a state brings another seed
        self._described: tuple[Job | None, PipelineFacts, str] = None, PipelineFacts(), ""

    def report(self) -> dict[str, Any]:
        """The run so far, as JSON values: times in seconds, sizes in bytes, epochs and windows counted from 0."""
        program, places, failure = self._core.describe()
        run = self._core.run_stats(spans=False)
        job, trainers = program.job, [one for one in run.trainers if one.seconds]
        if self._described[0] is not job:
            self._described = job, describe_pipeline(job, "ray"), describe_source(job)
        _, facts, source = self._described
        found = diagnose_run(run, trainers, facts)
        epoch, window = find_slowest_place(program, places, trainers)
        state = "reading" if places else "idle" if trainers else "starting"
        return {
            "windrow": find_version(),
            **self._starter,
            "source": source,
            "state": state if failure is None else "failed",
            "failure": "" if failure is None else failure.message or failure.original_text,
            "shards": program.shards,
            "epoch": epoch,
            "epochs": job.epochs,
            "window": window,
            "windows": program.fetched_windows(epoch),
            "epoch_rows": run.epoch_rows,
            "rows": sum(one.rows for one in trainers),
            "bytes": sum(one.bytes for one in trainers),
            "rows_per_second": sum(one.rows_per_second for one in trainers),
            "bytes_per_second": sum(one.bytes_per_second for one in trainers),
            "trainers": [_describe_trainer(one) for one in trainers],
            "tasks": run.tasks,
            "workers": run.workers,
            "held_bytes": run.held_bytes,
            "memory_bytes": run.memory_bytes,
            "peak_held_bytes": run.peak_held_bytes,
            "dropped_windows": run.dropped_windows,
            "corrupt_blocks": len(run.corrupt_blocks),
            "cause": found.cause,
            "wait_share": found.wait_share,
            "limit": found.sentence if trainers else "",
        }

    async def pack_spans(self) -> bytes:
        """Pickle the spans, in another thread, so that the coordinator goes on meanwhile."""
        run = self._core.run_stats(spans=True)
        return await asyncio.get_running_loop().run_in_executor(None, _pack, run)


def _describe_trainer(trainer: TrainerStats) -> dict[str, Any]:
    return {
        "shard": trainer.shard,
        "replica": trainer.replica,
        "batches": trainer.batches,
        "rows": trainer.rows,
        "bytes": trainer.bytes,
        "work_seconds": trainer.work_seconds,
        "waits": dict(trainer.waits),
    }


def find_slowest_place(
    program: Program, places: Mapping[int, Place], trainers: Sequence[TrainerStats]
) -> tuple[int, int]:
    """The epoch and window that the slowest reader is in; behind the last window of the last epoch at the end.

    It is where trainers are by their reports. Until all have reported, or where rows are counted as they are read, it
    is what clients have acknowledged (``places``): they have fetched all windows before that.
    """
    shards = {program.shard_of(client) for client in places}
    reported = {one.key: one.place for one in trainers if one.place and (not shards or one.shard in shards)}
    if reported and shards <= {key[0] for key in reported} and program.windows_known:
        epoch, row = min(reported.values())
        at = program.locate(epoch, row * program.job.sequence_rows)
        found = at.epoch, at.window
    else:
        found = min(((place.epoch, place.window) for place in places.values()), default=(0, 0))
    epochs = program.job.epochs
    if epochs is not None and found[0] >= epochs:
        return epochs - 1, program.fetched_windows(epochs - 1)
    return found


def _pack(run: RunStats) -> bytes:
    spans = merge_spans(run.spans, [run.trainer_spans])
    return pickle.dumps((Span._fields, [tuple(span) for span in spans]))


def unpack_spans(packed: bytes) -> list[dict[str, Any]]:
    """The spans that `RunReporter.pack_spans` has packed, as JSON values by the names of their fields."""
    fields, spans = pickle.loads(packed)
    return [dict(zip(fields, span, strict=True)) for span in spans]
