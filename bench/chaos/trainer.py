"""A trainer: reads its shard, checks every batch, and logs it with the state to resume from."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.chaos.expected import digest_keys
from bench.chaos.record import SharedProgress, Step, write_step
from bench.chaos.setting import COLUMNS, Setting, derive
from windrow import Shard

__all__ = ["Trainer", "TrainerSpec"]

_POLL_SECONDS = 0.005


@dataclass(frozen=True)
class TrainerSpec:
    """What a trainer reads, the state it starts from, and the files that it writes to."""

    setting: Setting
    number: int
    state: dict[str, Any] | None
    log: Path
    progress: Path
    steps_per_epoch: int


class Trainer:
    """An actor that reads one shard until the run is stopped."""

    def process(self) -> int:
        """The process id of this actor."""
        return os.getpid()

    def train(self, shard: Shard, spec: TrainerSpec) -> None:
        """Read the shard, from a state if there is one, until the run stops."""
        progress = SharedProgress(spec.progress, spec.setting.trainers)
        if spec.state is not None:
            shard.load_state_dict(spec.state)
        with spec.log.open("a") as log:
            for epoch in shard.iter_epochs():
                batches = epoch.iter_batches(spec.setting.batch_rows)
                step, began = batches.start, time.time()
                for batch in batches:
                    digest = digest_keys(batch["key"]) if _columns_match(batch) else None
                    got = Step(
                        began, time.time(), epoch.number, step, len(batch["key"]), digest, shard.state_dict()
                    )
                    write_step(log, got)
                    step += 1
                    done = epoch.number * spec.steps_per_epoch + step
                    progress.set(spec.number, done)
                    while done - progress.minimum() > spec.setting.lead and not progress.stopped:
                        time.sleep(_POLL_SECONDS)
                    if progress.stopped:
                        shard.close()
                        return
                    began = time.time()


def _columns_match(batch: Mapping[str, Any]) -> bool:
    """Whether the other columns match the keys."""
    keys = batch["key"]
    return all((batch[f"c{number}"] == derive(keys, number)).all() for number in range(1, COLUMNS, 6))
