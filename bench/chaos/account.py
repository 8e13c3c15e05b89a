"""Compares what trainers got with the undisturbed stream, and tells how soon it went on."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from bench.chaos.killer import Kill
from bench.chaos.record import Life, Step

__all__ = ["Report", "compare", "find_recoveries", "find_throughput", "make_report"]

# a batch that was waited for so much longer than usual was held up by something
_AFFECTED_SECONDS = 0.25


class Stream(Protocol):
    """The undisturbed stream."""

    def steps(self, shard: int) -> int:
        """Batches of a shard in an epoch."""
        ...

    def digest(self, epoch: int, step: int, shard: int) -> str:
        """The digest of one batch's keys."""
        ...


def compare(lives: Sequence[Life], stream: Stream, trainers: int) -> list[str]:
    """Every difference from the undisturbed stream, in words."""
    differences = []
    for shard in range(trainers):
        own = sorted((life for life in lives if life.shard == shard), key=lambda life: life.began)
        steps = stream.steps(shard)
        end = 0
        for life in own:
            at = 0 if life.state is None else _count(life.state, steps)
            if at > end:
                differences.append(f"shard {shard}: steps {end} to {at} are missing")
            for got in life.steps:
                number = got.epoch * steps + got.step
                where = f"shard {shard}, epoch {got.epoch}, step {got.step}"
                if number != at:
                    differences.append(f"{where}: comes where step {at} of all is due")
                if got.digest != stream.digest(got.epoch, got.step, shard):
                    differences.append(f"{where}: other rows, or in another order")
                at = number + 1
            end = max(end, at)
    return differences


def _count(state: dict[str, Any], steps: int) -> int:
    step_rows = state["shards"] * state["batch_size"]
    return int(state["epoch"]) * steps + int(state["row"]) // step_rows


def find_recoveries(lives: Sequence[Life], kills: Sequence[Kill]) -> dict[str, list[float]]:
    """For each kind of kill: seconds until each shard that was affected had its next batch.

    A trainer that was killed is affected; others are where a batch that they were waiting for at
    the kill, or began to wait for before the next one, took unusually long.
    """
    found: dict[str, list[float]] = {}
    ends = [kill.time for kill in kills[1:]] + [float("inf")]
    for kill, end in zip(kills, ends, strict=True):
        for shard in sorted({life.shard for life in lives}):
            seconds = _recover(lives, shard, kill, end)
            if seconds is not None:
                found.setdefault(kill.kind, []).append(seconds)
    return found


def _recover(lives: Sequence[Life], shard: int, kill: Kill, end: float) -> float | None:
    got = [step for life in lives if life.shard == shard for step in life.steps]
    if shard == kill.shard:
        back = [life for life in lives if life.shard == shard and life.began >= kill.time and life.steps]
        first = min((life.steps[0].time for life in back), default=None)
        return None if first is None else first - kill.time
    held_up = [
        step for step in got if step.time > kill.time and step.began < end and _is_long(step, kill.time)
    ]
    return held_up[0].time - kill.time if held_up else None


def _is_long(step: Step, since: float) -> bool:
    return step.time - max(step.began, since) > _AFFECTED_SECONDS


def find_throughput(lives: Sequence[Life], start: float, stop: float) -> float:
    """Rows a second between two moments; what was read again counts once."""
    before = {_key(life, step) for life in lives for step in life.steps if step.time < start}
    within = {
        _key(life, step): step.rows for life in lives for step in life.steps if start <= step.time < stop
    }
    return sum(rows for key, rows in within.items() if key not in before) / max(stop - start, 1e-9)


def _key(life: Life, step: Step) -> tuple[int, int, int]:
    return life.shard, step.epoch, step.step


@dataclass
class Report:
    """What a run did.

    Attributes
    ----------
    recovery_seconds
        By kind of kill: seconds until each shard that was held up had its next batch.
    ray_seconds
        By kind of kill: seconds until Ray had restarted a plain task that it was to retry.
    longest_wait_seconds
        The longest that a trainer waited for one batch.
    """

    seed: int
    kills: dict[str, int]
    recovery_seconds: dict[str, list[float]]
    rows_per_second: dict[str, float]
    seconds: float
    steps: int
    epochs: int
    reread_steps: int
    differences: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    spilled_bytes: int = 0
    ray_seconds: dict[str, list[float]] = field(default_factory=dict)
    longest_wait_seconds: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether nothing differed and nobody failed."""
        return not self.differences and not self.errors

    @property
    def killed(self) -> int:
        """Kills of all kinds."""
        return sum(times for kind, times in self.kills.items() if kind != "pressure")

    def median(self, kind: str) -> float | None:
        """Median seconds to recover; None where nobody noticed."""
        seconds = self.recovery_seconds.get(kind)
        return statistics.median(seconds) if seconds else None

    def longest(self, kind: str) -> float | None:
        """Most seconds to recover."""
        return max(self.recovery_seconds.get(kind, ()), default=None)

    def ray_median(self, kind: str) -> float | None:
        """Median seconds that Ray took for a plain task; None where none was hit."""
        seconds = self.ray_seconds.get(kind)
        return statistics.median(seconds) if seconds else None

    def ray_longest(self, kind: str) -> float | None:
        """Most seconds that Ray took for a plain task."""
        return max(self.ray_seconds.get(kind, ()), default=None)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def make_report(
    lives: Sequence[Life],
    kills: Sequence[Kill],
    stream: Stream,
    *,
    seed: int,
    trainers: int,
    calm: tuple[float, float],
    disturbed: tuple[float, float],
) -> Report:
    """Compare and measure."""
    steps = [_key(life, step) for life in lives for step in life.steps]
    return Report(
        seed=seed,
        kills=dict(Counter(kill.kind for kill in kills)),
        recovery_seconds=find_recoveries(lives, kills),
        rows_per_second={
            "calm": find_throughput(lives, *calm),
            "disturbed": find_throughput(lives, *disturbed),
        },
        seconds=disturbed[1] - disturbed[0],
        steps=len(set(steps)),
        epochs=max((epoch for _, epoch, _ in steps), default=0),
        reread_steps=len(steps) - len(set(steps)),
        differences=compare(lives, stream, trainers),
        longest_wait_seconds=max((step.wait_seconds for life in lives for step in life.steps), default=0.0),
    )
