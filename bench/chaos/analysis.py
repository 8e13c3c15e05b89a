"""The report of a chaos run: differences from the undisturbed stream, recovery times, throughput."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.chaos.setting import KINDS, Expected, Kill
from bench.chaos.trainers import Incarnation, Step
from bench.system.console import align_table
from bench.system.ray_cluster import describe_spilled

# a wait for a batch that is longer than this counts as caused by a kill
_AFFECTED_SECONDS = 0.25
_SHOWN = 20


def compare(incarnations: Sequence[Incarnation], stream: Expected, trainers: int) -> list[str]:
    differences = []
    for shard in range(trainers):
        own = sorted((one for one in incarnations if one.shard == shard), key=lambda one: one.began)
        steps = stream.steps(shard)
        end = 0
        for incarnation in own:
            at = 0 if incarnation.state is None else _count(incarnation.state, steps)
            if at > end:
                differences.append(f"shard {shard}: steps {end} to {at} are missing")
            for got in incarnation.steps:
                number = got.epoch * steps + got.step
                where = f"shard {shard}, epoch {got.epoch}, step {got.step}"
                if number != at:
                    differences.append(f"{where}: received where overall step {at} is expected")
                if got.digest != stream.digest(got.epoch, got.step, shard):
                    differences.append(f"{where}: different rows or a different order")
                at = number + 1
            end = max(end, at)
    return differences


def _count(state: dict[str, Any], steps: int) -> int:
    step_rows = state["shards"] * state["batch_size"]
    return int(state["epoch"]) * steps + int(state["row"]) // step_rows


def find_recoveries(incarnations: Sequence[Incarnation], kills: Sequence[Kill]) -> dict[str, list[float]]:
    """For each kind of kill: seconds until each affected shard received its next batch.

    A killed trainer is affected. Another trainer is if its wait for a batch was unusually long and either
    was in progress at the kill or started before the next kill.
    """
    found: dict[str, list[float]] = {}
    # there are none if a trainer fails before the first one
    for kill, end in zip(kills, [*(kill.time for kill in kills[1:]), float("inf")], strict=False):
        for shard in sorted({incarnation.shard for incarnation in incarnations}):
            seconds = _recovery_seconds(incarnations, shard, kill, end)
            if seconds is not None:
                found.setdefault(kill.kind, []).append(seconds)
    return found


def _recovery_seconds(
    incarnations: Sequence[Incarnation], shard: int, kill: Kill, end: float
) -> float | None:
    own = [incarnation for incarnation in incarnations if incarnation.shard == shard]
    if shard == kill.shard:
        back = [
            incarnation.steps[0]
            for incarnation in own
            if incarnation.began >= kill.time and incarnation.steps
        ]
        return min((step.time - kill.time for step in back), default=None)
    got = [
        step
        for incarnation in own
        for step in incarnation.steps
        if step.time > kill.time and step.began < end
    ]
    long = [step for step in got if step.time - max(step.began, kill.time) > _AFFECTED_SECONDS]
    return long[0].time - kill.time if long else None


def compute_throughput(incarnations: Sequence[Incarnation], start: float, stop: float) -> float:
    """Rows per second between two times; rows that were read again count once."""
    steps = [(_key(incarnation, step), step) for incarnation in incarnations for step in incarnation.steps]
    before = {key for key, step in steps if step.time < start}
    within = {key: step.rows for key, step in steps if start <= step.time < stop}
    return sum(rows for key, rows in within.items() if key not in before) / max(stop - start, 1e-9)


def _key(incarnation: Incarnation, step: Step) -> tuple[int, int, int]:
    return incarnation.shard, step.epoch, step.step


@dataclass
class Report:
    """By kind of kill, ``ray_seconds`` are those until Ray had restarted a plain task with retries."""

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
        return not self.differences and not self.errors

    @property
    def killed(self) -> int:
        return sum(times for kind, times in self.kills.items() if kind != "pressure")


def make_report(
    incarnations: Sequence[Incarnation],
    kills: Sequence[Kill],
    stream: Expected,
    *,
    seed: int,
    trainers: int,
    baseline: tuple[float, float],
    disturbed: tuple[float, float],
) -> Report:
    steps = [_key(incarnation, step) for incarnation in incarnations for step in incarnation.steps]
    return Report(
        seed=seed,
        kills=dict(Counter(kill.kind for kill in kills)),
        recovery_seconds=find_recoveries(incarnations, kills),
        rows_per_second={
            "baseline": compute_throughput(incarnations, *baseline),
            "disturbed": compute_throughput(incarnations, *disturbed),
        },
        seconds=disturbed[1] - disturbed[0],
        steps=len(set(steps)),
        epochs=max((epoch for _, epoch, _ in steps), default=0),
        reread_steps=len(steps) - len(set(steps)),
        differences=compare(incarnations, stream, trainers),
        longest_wait_seconds=max(
            (step.wait_seconds for incarnation in incarnations for step in incarnation.steps), default=0.0
        ),
    )


def _write_seconds(seconds: Sequence[float] | None) -> tuple[str, str]:
    """The median and the longest; "-" if there are none."""
    return (f"{statistics.median(seconds):.1f}", f"{max(seconds):.1f}") if seconds else ("-", "-")


def draw_report(report: Report) -> str:
    rows = [
        (
            kind,
            str(report.kills.get(kind, 0)),
            str(len(report.recovery_seconds.get(kind, ()))),
            *_write_seconds(report.recovery_seconds.get(kind)),
            *_write_seconds(report.ray_seconds.get(kind)),
        )
        for kind in dict.fromkeys([*KINDS, *report.kills])
    ]
    heads = ("fault", "times", "shards affected", "median s", "longest s", "Ray median s", "Ray longest s")
    baseline, disturbed = report.rows_per_second["baseline"], report.rows_per_second["disturbed"]
    lines = [
        align_table(heads, rows, ("fault",)),
        f"seed {report.seed}: {report.killed} kills in {report.seconds:.0f} s; "
        f"{report.steps:,} batches of {report.epochs + 1} epochs, {report.reread_steps} read again by "
        f"restarted trainers; {describe_spilled(report.spilled_bytes)} MiB spilled",
        f"longest wait for a batch: {report.longest_wait_seconds:.1f} s",
        f"rows a second: {baseline:,.0f} undisturbed, {disturbed:,.0f} disturbed",
        f"differences from the undisturbed run: {len(report.differences)}",
        *(f"  {difference}" for difference in report.differences[:_SHOWN]),
        *(f"error: {error}" for error in report.errors),
    ]
    return "\n".join(lines)
