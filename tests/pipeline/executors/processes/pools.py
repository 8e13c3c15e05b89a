"""Pipelines for tests of worker processes, and the processes that this one has started."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import windrow

ROWS = 600


def worker_pids() -> list[int]:
    """The processes that this one has started to run transforms in."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        pids: list[str] = []
        # a thread or a process can end meanwhile
        with suppress(FileNotFoundError, ProcessLookupError):
            pids = (task / "children").read_text().split()
        for pid in pids:
            with suppress(FileNotFoundError, ProcessLookupError):
                if b"processes.worker" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(int(pid))
    return found


def shuffled(rows: int = ROWS, blocks: int = 6, epochs: int = 1) -> windrow.DatasetPipeline:
    pipe = windrow.range(rows).repartition(blocks).window(blocks_per_window=2).repeat(epochs)
    return pipe.random_shuffle_each_window(seed=7).options(executor="threads", progress=False)


def read(pipe: windrow.DatasetPipeline, batch_size: int = 20) -> list[dict[str, Any]]:
    batches = [batch for epoch in pipe.iter_epochs() for batch in epoch.iter_batches(batch_size)]
    return [{name: values.tolist() for name, values in batch.items()} for batch in batches]


def pids_of(batches: list[dict[str, Any]]) -> set[int]:
    return {pid for batch in batches for pid in batch["pid"]}
