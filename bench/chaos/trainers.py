"""The trainers of a chaos run across restarts, and the log of their steps."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from bench.chaos.cluster import kill
from bench.chaos.setting import COLUMNS, Expected, Setting, derive, digest_keys
from windrow import Shard

_POLL_SECONDS = 0.005
_MOST_STARTS = 3


@dataclass(frozen=True)
class Step:
    """A batch that a trainer received, and the state after it; no digest if its other columns do not match its keys."""

    began: float
    time: float
    epoch: int
    step: int
    rows: int
    digest: str | None
    state: dict[str, Any]

    @property
    def wait_seconds(self) -> float:
        return self.time - self.began


@dataclass(frozen=True)
class Incarnation:
    """A trainer from its start to its death: the state it started from, and its steps."""

    shard: int
    began: float
    state: dict[str, Any] | None
    steps: list[Step]


def write_step(file: IO[str], step: Step) -> None:
    file.write(json.dumps(vars(step)) + "\n")
    file.flush()


def read_incarnation(path: Path, shard: int, began: float, state: dict[str, Any] | None) -> Incarnation:
    """Read the log of one incarnation; an incomplete last line is ignored."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    steps = [Step(**json.loads(line)) for line in lines if line.endswith("\n")]
    return Incarnation(shard, began, state, steps)


def open_progress(path: Path, trainers: int) -> NDArray[np.int64]:
    """Step counts of all trainers, in a file that each of them maps; the last entry tells them to stop."""
    if not path.exists():
        np.zeros(trainers + 1, "<i8").tofile(path)
    return np.memmap(path, "<i8", "r+", shape=(trainers + 1,))


class Trainer:
    """An actor that reads one shard until the run is stopped."""

    def process(self) -> int:
        return os.getpid()

    def train(
        self,
        shard: Shard,
        number: int,
        setting: Setting,
        state: dict[str, Any] | None,
        log_path: Path,
        steps: int,
    ) -> None:
        progress = open_progress(log_path.with_name("progress"), setting.readers)
        if state is not None:
            shard.load_state_dict(state)
        with log_path.open("a") as log:
            for epoch in shard.iter_epochs():
                batches = epoch.iter_batches(setting.batch_rows)
                step, began = batches.start, time.time()
                for batch in batches:
                    digest = digest_keys(batch["key"]) if _columns_match(batch) else None
                    place = epoch.number, step, len(batch["key"])
                    write_step(log, Step(began, time.time(), *place, digest, shard.state_dict()))
                    step += 1
                    done = epoch.number * steps + step
                    progress[number] = done
                    while done - progress[:-1].min() > setting.lead and not progress[-1]:
                        time.sleep(_POLL_SECONDS)
                    if progress[-1]:
                        shard.close()
                        return
                    began = time.time()


def _columns_match(batch: Mapping[str, Any]) -> bool:
    keys = batch["key"]
    return all((batch[f"c{number}"] == derive(keys, number)).all() for number in range(1, COLUMNS, 6))


@dataclass
class _LiveTrainer:
    actor: Any
    running: Any
    log: Path
    node: str
    began: float
    state: dict[str, Any] | None
    starts: int
    process: int | None = None


class TrainerGroup:
    """Starts trainers, kills them, and restarts them from a state that is a few steps old."""

    def __init__(
        self,
        setting: Setting,
        trainer_nodes: Sequence[str],
        shards: Sequence[Shard],
        folder: Path,
        expected: Expected,
    ) -> None:
        self._setting, self._trainer_nodes, self._shards = setting, trainer_nodes, shards
        self._folder, self._expected = folder, expected
        self._ended: list[Incarnation] = []
        self._started = 0
        self._progress = open_progress(folder / "progress", setting.readers)
        self.errors: list[str] = []
        self._live = [
            self._begin(shard, None, trainer_nodes[shard % len(trainer_nodes)])
            for shard in range(setting.readers)
        ]

    def kill(self, rng: random.Random) -> tuple[int, str] | None:
        """Kill a trainer that has read a batch and restart it; returns its shard and the node it was on."""
        shard = rng.randrange(self._setting.readers)
        live = self._live[shard]
        process = self._process(live)
        if process is None or not read_incarnation(live.log, shard, 0.0, None).steps or not kill(process):
            return None
        incarnation = self._end(shard)
        rollback_steps = min(len(incarnation.steps), rng.randint(1, self._setting.max_rollback_steps + 1))
        # of its last step or of an earlier one
        state = incarnation.steps[-rollback_steps].state
        self._live[shard] = self._begin(shard, state, rng.choice(self._trainer_nodes))
        return shard, live.node

    def count_steps(self) -> list[int]:
        """The steps that each trainer has completed over all epochs."""
        return self._progress[:-1].tolist()

    def look(self) -> None:
        import ray

        for shard, live in enumerate(self._live):
            done, _ = ray.wait([live.running], timeout=0)
            if not done or self._progress[-1]:
                continue
            outcome = _describe_end(live.running)
            if outcome.startswith("ActorDied") and not live.log.exists() and live.starts < _MOST_STARTS:
                # its process was idle when Ray gave it the actor, and idle processes are killed too
                self._live[shard] = self._begin(shard, live.state, live.node, live.starts + 1)
            else:
                self.errors.append(f"trainer {shard}: {outcome}")

    def finish(self, seconds: float) -> list[Incarnation]:
        import ray

        self._progress[-1] = 1
        running = [live.running for live in self._live]
        _, late = ray.wait(running, num_returns=len(running), timeout=seconds)
        for shard, live in enumerate(self._live):
            if live.running in late:
                self.errors.append(f"trainer {shard} did not end within {seconds:.0f} s")
            elif (outcome := _describe_end(live.running)) != "it ended":
                self.errors.append(f"trainer {shard}: {outcome}")
            self._end(shard)
        return self._ended

    def _begin(self, shard: int, state: dict[str, Any] | None, node: str, starts: int = 1) -> _LiveTrainer:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._started += 1
        log = self._folder / f"shard-{shard}-incarnation-{self._started}.jsonl"
        there = NodeAffinitySchedulingStrategy(node, soft=False)
        remote: Any = ray.remote(Trainer)
        actor = remote.options(num_cpus=0, max_concurrency=2, scheduling_strategy=there).remote()
        arguments = (shard, self._setting, state, log, self._expected.steps(0))
        running = actor.train.remote(self._shards[shard], *arguments)
        return _LiveTrainer(actor, running, log, node, time.time(), state, starts)

    def _process(self, live: _LiveTrainer) -> int | None:
        import ray

        if live.process is None:
            ref = live.actor.process.remote()
            ready, _ = ray.wait([ref], timeout=1.0)
            live.process = ray.get(ref) if ready else None
        return live.process

    def _end(self, shard: int) -> Incarnation:
        live = self._live[shard]
        self._ended.append(read_incarnation(live.log, shard, live.began, live.state))
        return self._ended[-1]


def _describe_end(running: Any) -> str:
    import ray

    try:
        ray.get(running, timeout=0)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "it ended"
