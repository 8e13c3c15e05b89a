"""The trainers of a chaos run, over all their lives."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.chaos.cluster import kill
from bench.chaos.expected import Expected
from bench.chaos.record import Life, Pace, Step, read_life
from bench.chaos.setting import Setting
from bench.chaos.trainer import Assignment, Trainer
from windrow import Shard

__all__ = ["Crew"]


@dataclass
class _Present:
    """The present life of one trainer."""

    actor: Any
    running: Any
    log: Path
    home: str
    began: float
    state: dict[str, Any] | None
    process: int | None = None


class Crew:
    """Starts trainers, kills them, and brings them back with a state of some steps before."""

    def __init__(
        self,
        setting: Setting,
        homes: Sequence[str],
        shards: Sequence[Shard],
        folder: Path,
        expected: Expected,
    ) -> None:
        self._setting, self._homes, self._shards, self._folder = setting, homes, shards, folder
        self._expected = expected
        self._past: list[Life] = []
        self._born = 0
        self.pace = Pace(folder / "pace", setting.trainers)
        self.errors: list[str] = []
        self._present = [
            self._begin(shard, None, homes[shard % len(homes)]) for shard in range(setting.trainers)
        ]

    def kill(self, chance: random.Random) -> tuple[int, str] | None:
        """Kill a trainer that has read something, and bring it back; returns its shard and where it was."""
        shard = chance.randrange(self._setting.trainers)
        present = self._present[shard]
        process = self._process(present)
        if process is None or not read_life(present.log, shard, 0.0, None).steps or not kill(process):
            return None
        life = self._end(shard)
        behind = min(len(life.steps), chance.randint(1, self._setting.behind + 1))
        # with the state of its last step, or of one before
        self._present[shard] = self._begin(shard, life.steps[-behind].state, chance.choice(self._homes))
        return shard, present.home

    def look(self) -> None:
        """Note trainers that ended by themselves, which none should."""
        import ray

        for shard, present in enumerate(self._present):
            done, _ = ray.wait([present.running], timeout=0)
            if done and not self.pace.stopped:
                self.errors.append(f"trainer {shard}: {_tell(present.running)}")

    def finish(self, seconds: float) -> list[Life]:
        """Let all trainers end; returns all lives."""
        import ray

        self.pace.stop()
        running = [present.running for present in self._present]
        _, late = ray.wait(running, num_returns=len(running), timeout=seconds)
        for shard, present in enumerate(self._present):
            if present.running in late:
                self.errors.append(f"trainer {shard} did not end within {seconds:.0f} s")
            elif (told := _tell(present.running)) != "it ended":
                self.errors.append(f"trainer {shard}: {told}")
            self._end(shard)
        return self._past

    def last_steps(self) -> list[Step | None]:
        """What each trainer got last in its present life."""
        lives = [read_life(p.log, shard, p.began, p.state) for shard, p in enumerate(self._present)]
        return [life.steps[-1] if life.steps else None for life in lives]

    def _begin(self, shard: int, state: dict[str, Any] | None, home: str) -> _Present:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._born += 1
        log = self._folder / f"shard-{shard}-life-{self._born}.jsonl"
        there = NodeAffinitySchedulingStrategy(home, soft=False)
        remote: Any = ray.remote(Trainer)
        actor = remote.options(num_cpus=0, max_concurrency=2, scheduling_strategy=there).remote()
        steps = self._expected.steps(0)
        asked = Assignment(self._setting, shard, state, log, self._folder / "pace", steps)
        return _Present(actor, actor.train.remote(self._shards[shard], asked), log, home, time.time(), state)

    def _process(self, present: _Present) -> int | None:
        import ray

        if present.process is None:
            ref = present.actor.process.remote()
            ready, _ = ray.wait([ref], timeout=1.0)
            present.process = ray.get(ref) if ready else None
        return present.process

    def _end(self, shard: int) -> Life:
        present = self._present[shard]
        life = read_life(present.log, shard, present.began, present.state)
        self._past.append(life)
        return life


def _tell(running: Any) -> str:
    import ray

    try:
        ray.get(running, timeout=0)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "it ended"
