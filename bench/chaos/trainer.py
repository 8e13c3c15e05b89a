"""A trainer: reads its shard, checks every batch, and notes it with the state it would resume from."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.chaos.expected import digest_keys
from bench.chaos.record import Pace, Step, write_step
from bench.chaos.setting import COLUMNS, Setting, derive
from windrow import Shard

__all__ = ["Assignment", "Trainer"]

_LOOK_SECONDS = 0.005


@dataclass(frozen=True)
class Assignment:
    """What a trainer reads from where on, and where it writes what it got."""

    setting: Setting
    number: int
    state: dict[str, Any] | None
    log: Path
    pace: Path
    steps_per_epoch: int


class Trainer:
    """An actor that reads one shard until the run is stopped."""

    def process(self) -> int:
        """Its process id."""
        return os.getpid()

    def train(self, shard: Shard, asked: Assignment) -> None:
        """Read on from a state."""
        pace = Pace(asked.pace, asked.setting.trainers)
        if asked.state is not None:
            shard.load_state_dict(asked.state)
        with asked.log.open("a") as log:
            for epoch in shard.iter_epochs():
                batches = epoch.iter_batches(asked.setting.batch_rows)
                step, began = batches.start, time.time()
                for batch in batches:
                    digest = digest_keys(batch["key"]) if _belongs(batch) else None
                    got = Step(
                        began, time.time(), epoch.number, step, len(batch["key"]), digest, shard.state_dict()
                    )
                    write_step(log, got)
                    step += 1
                    done = epoch.number * asked.steps_per_epoch + step
                    pace.set(asked.number, done)
                    while done - pace.least() > asked.setting.lead and not pace.stopped:
                        time.sleep(_LOOK_SECONDS)
                    if pace.stopped:
                        shard.close()
                        return
                    began = time.time()


def _belongs(batch: Mapping[str, Any]) -> bool:
    """Whether the other columns are those of the keys."""
    keys = batch["key"]
    return all((batch[f"c{number}"] == derive(keys, number)).all() for number in range(1, COLUMNS, 6))
