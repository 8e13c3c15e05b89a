"""The trainers of a chaos run, across restarts."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.chaos.cluster import kill
from bench.chaos.expected import Expected
from bench.chaos.record import Incarnation, SharedProgress, Step, read_incarnation
from bench.chaos.setting import Setting
from bench.chaos.trainer import Trainer, TrainerSpec
from windrow import Shard

__all__ = ["TrainerGroup"]


@dataclass
class _LiveTrainer:
    """The current incarnation of one trainer."""

    actor: Any
    running: Any
    log: Path
    node: str
    began: float
    state: dict[str, Any] | None
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
        self._setting, self._trainer_nodes, self._shards, self._folder = (
            setting,
            trainer_nodes,
            shards,
            folder,
        )
        self._expected = expected
        self._ended: list[Incarnation] = []
        self._started = 0
        self.progress = SharedProgress(folder / "progress", setting.trainers)
        self.errors: list[str] = []
        self._live = [
            self._begin(shard, None, trainer_nodes[shard % len(trainer_nodes)])
            for shard in range(setting.trainers)
        ]

    def kill(self, rng: random.Random) -> tuple[int, str] | None:
        """Kill a trainer that has read a batch and restart it; returns its shard and the node it was on."""
        shard = rng.randrange(self._setting.trainers)
        live = self._live[shard]
        process = self._process(live)
        if process is None or not read_incarnation(live.log, shard, 0.0, None).steps or not kill(process):
            return None
        incarnation = self._end(shard)
        rollback_steps = min(len(incarnation.steps), rng.randint(1, self._setting.max_rollback_steps + 1))
        # from the state of its last step or of an earlier one
        self._live[shard] = self._begin(
            shard, incarnation.steps[-rollback_steps].state, rng.choice(self._trainer_nodes)
        )
        return shard, live.node

    def look(self) -> None:
        """Record trainers that ended on their own as errors."""
        import ray

        for shard, live in enumerate(self._live):
            done, _ = ray.wait([live.running], timeout=0)
            if done and not self.progress.stopped:
                self.errors.append(f"trainer {shard}: {_describe_end(live.running)}")

    def finish(self, seconds: float) -> list[Incarnation]:
        """Let all trainers end; returns all incarnations."""
        import ray

        self.progress.stop()
        running = [live.running for live in self._live]
        _, late = ray.wait(running, num_returns=len(running), timeout=seconds)
        for shard, live in enumerate(self._live):
            if live.running in late:
                self.errors.append(f"trainer {shard} did not end within {seconds:.0f} s")
            elif (outcome := _describe_end(live.running)) != "it ended":
                self.errors.append(f"trainer {shard}: {outcome}")
            self._end(shard)
        return self._ended

    def last_steps(self) -> list[Step | None]:
        """The last step of each trainer's current incarnation."""
        incarnations = [
            read_incarnation(p.log, shard, p.began, p.state) for shard, p in enumerate(self._live)
        ]
        return [incarnation.steps[-1] if incarnation.steps else None for incarnation in incarnations]

    def _begin(self, shard: int, state: dict[str, Any] | None, node: str) -> _LiveTrainer:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._started += 1
        log = self._folder / f"shard-{shard}-incarnation-{self._started}.jsonl"
        there = NodeAffinitySchedulingStrategy(node, soft=False)
        remote: Any = ray.remote(Trainer)
        actor = remote.options(num_cpus=0, max_concurrency=2, scheduling_strategy=there).remote()
        steps = self._expected.steps(0)
        spec = TrainerSpec(self._setting, shard, state, log, self._folder / "progress", steps)
        return _LiveTrainer(
            actor, actor.train.remote(self._shards[shard], spec), log, node, time.time(), state
        )

    def _process(self, live: _LiveTrainer) -> int | None:
        import ray

        if live.process is None:
            ref = live.actor.process.remote()
            ready, _ = ray.wait([ref], timeout=1.0)
            live.process = ray.get(ref) if ready else None
        return live.process

    def _end(self, shard: int) -> Incarnation:
        live = self._live[shard]
        incarnation = read_incarnation(live.log, shard, live.began, live.state)
        self._ended.append(incarnation)
        return incarnation


def _describe_end(running: Any) -> str:
    import ray

    try:
        ray.get(running, timeout=0)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "it ended"
