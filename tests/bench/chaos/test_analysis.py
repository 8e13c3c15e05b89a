"""The analysis of chaos runs, on hand-made incarnations of trainers."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.chaos.analysis import compare, compute_throughput, draw_report, find_recoveries, make_report
from bench.chaos.setting import KINDS, Expected, Kill, plan_kills
from bench.chaos.trainers import Incarnation, Step, open_progress, read_incarnation, write_step

STEPS = 4
ROWS = 10


class Undisturbed(Expected):
    """A stream of four steps per epoch."""

    def __init__(self) -> None:
        pass

    def steps(self, shard: int) -> int:
        return STEPS

    def digest(self, epoch: int, step: int, shard: int) -> str:
        return f"{epoch}.{step}.{shard}"


def step_at(number: int, *, time: float | None = None, wait: float = 0.0, shard: int = 0) -> Step:
    """The step with this overall number, one second after its predecessor."""
    epoch, step = divmod(number, STEPS)
    time = float(number) if time is None else time
    digest = Undisturbed().digest(epoch, step, shard)
    return Step(time - wait, time, epoch, step, ROWS, digest, state_after(number))


def state_after(number: int) -> dict[str, Any]:
    epoch, step = divmod(number + 1, STEPS)
    return {"epoch": epoch, "row": step * ROWS, "shards": 1, "batch_size": ROWS}


def incarnation_of(first: int, stop: int, *, began: float | None = None) -> Incarnation:
    state = state_after(first - 1) if first else None
    steps = [step_at(number) for number in range(first, stop)]
    return Incarnation(0, float(first) if began is None else began, state, steps)


def differences(*incarnations: Incarnation) -> list[str]:
    return compare(incarnations, Undisturbed(), 1)


def test_stream_continues_unchanged_after_restarts() -> None:
    assert (
        differences(incarnation_of(0, 6), incarnation_of(4, 9, began=6.5), incarnation_of(9, 20, began=9.5))
        == []
    )
    # including one that died before its first step
    assert (
        differences(incarnation_of(0, 6), incarnation_of(5, 5, began=6.5), incarnation_of(5, 9, began=7))
        == []
    )


def test_differences_are_reported() -> None:
    whole = incarnation_of(0, 9)
    swapped = replace(whole, steps=[*whole.steps[:3], replace(whole.steps[3], digest="x"), *whole.steps[4:]])
    assert differences(swapped) == ["shard 0, epoch 0, step 3: different rows or a different order"]
    mixed = replace(whole, steps=[replace(whole.steps[0], digest=None), *whole.steps[1:]])
    assert len(differences(mixed)) == 1
    lost = replace(whole, steps=whole.steps[:3] + whole.steps[4:])
    assert differences(lost) == ["shard 0, epoch 1, step 0: received where overall step 3 is expected"]
    twice = replace(whole, steps=whole.steps[:3] + whole.steps[2:])
    assert differences(twice) == ["shard 0, epoch 0, step 2: received where overall step 3 is expected"]
    assert differences(incarnation_of(0, 6), incarnation_of(7, 9, began=6.5)) == [
        "shard 0: steps 6 to 7 are missing"
    ]


def test_recovery_is_the_time_until_delayed_shards_continue() -> None:
    quick = [step_at(number) for number in range(10)]
    delayed = [*quick[:5], step_at(5, time=8.0, wait=3.9)]
    incarnations = [Incarnation(0, 0.0, None, delayed), Incarnation(1, 0.0, None, quick)]
    assert find_recoveries(incarnations, [Kill(4.5, "coordinator")]) == {"coordinator": [3.5]}
    # a batch that arrived only after the next kill was delayed by both
    both = [Kill(4.5, "raylet"), Kill(6.0, "worker")]
    assert find_recoveries(incarnations, both) == {"raylet": [3.5], "worker": [2.0]}
    assert find_recoveries(incarnations, [Kill(8.5, "worker")]) == {}
    assert find_recoveries(incarnations, []) == {}


def test_killed_trainer_recovers_with_its_first_batch() -> None:
    back = Incarnation(0, 6.2, state_after(4), [step_at(5, time=9.0, wait=0.1)])
    kills = [Kill(6.0, "trainer", 0)]
    assert find_recoveries([incarnation_of(0, 6), back], kills) == {"trainer": [3.0]}


def test_throughput_counts_rows_read_again_once() -> None:
    incarnations = [
        incarnation_of(0, 6),
        Incarnation(0, 6.5, state_after(3), [step_at(n, time=n + 3.0) for n in range(4, 10)]),
    ]
    assert compute_throughput(incarnations, 0.0, 5.0) == ROWS
    # steps 6 to 9 are new
    assert compute_throughput(incarnations, 6.0, 14.0) == 4 * ROWS / 8.0


def test_seed_determines_kills_and_kinds_are_balanced() -> None:
    planned = list(plan_kills(3, 4 * len(KINDS), 60.0))
    assert planned == list(plan_kills(3, 4 * len(KINDS), 60.0)) != list(plan_kills(4, 4 * len(KINDS), 60.0))
    assert Counter(kill.kind for kill in planned) == dict.fromkeys(KINDS, 4)
    assert sum(kill.after_seconds for kill in planned) == pytest.approx(60.0, abs=12.0)


def test_incomplete_last_line_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "incarnation"
    assert read_incarnation(path, 0, 0.0, None).steps == []
    with path.open("a") as file:
        write_step(file, step_at(0))
        file.write('{"began": 1.0, "ti')
    assert read_incarnation(path, 0, 0.0, None).steps == [step_at(0)]


def test_trainers_see_the_progress_of_others(tmp_path: Path) -> None:
    one, other = (open_progress(tmp_path / "progress", 2) for _ in range(2))
    one[0] = 7
    assert other.tolist() == [7, 0, 0]
    other[1:] = 9, 1
    assert one.tolist() == [7, 9, 1]


def test_report_is_a_table() -> None:
    kills = [Kill(2.5, "worker"), Kill(6.0, "trainer", 0)]
    incarnations = [incarnation_of(0, 6), incarnation_of(4, 9, began=6.5)]
    report = make_report(
        incarnations, kills, Undisturbed(), seed=5, trainers=1, baseline=(0.0, 2.0), disturbed=(2.0, 9.0)
    )
    assert report.passed
    assert (report.steps, report.reread_steps, report.killed, report.epochs) == (9, 2, 2, 2)
    text = draw_report(report)
    assert "differences from the undisturbed run: 0" in text
    assert text.splitlines()[2].split() == ["worker", "1", "0", "-", "-", "-", "-"]
    report.differences.append("shard 0: wrong")
    assert not report.passed
    assert "shard 0: wrong" in draw_report(report)
