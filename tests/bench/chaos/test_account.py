"""What a chaos run compares and measures, on lives made by hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.chaos.account import compare, find_recoveries, find_throughput, make_report
from bench.chaos.killer import KINDS, Kill, plan_kills
from bench.chaos.record import Life, Pace, Step, read_life, write_step
from bench.chaos.report import draw_report

STEPS = 4
ROWS = 10


class Undisturbed:
    """Four steps an epoch."""

    def steps(self, shard: int) -> int:
        return STEPS

    def digest(self, epoch: int, step: int, shard: int) -> str:
        return f"{epoch}.{step}.{shard}"


def step_at(number: int, *, time: float | None = None, wait: float = 0.0, shard: int = 0) -> Step:
    """The step that is the number-th of all, a second after the one before."""
    epoch, step = divmod(number, STEPS)
    time = float(number) if time is None else time
    digest = Undisturbed().digest(epoch, step, shard)
    return Step(time - wait, time, epoch, step, ROWS, digest, state_after(number))


def state_after(number: int) -> dict[str, Any]:
    epoch, step = divmod(number + 1, STEPS)
    return {"epoch": epoch, "row": step * ROWS, "shards": 1, "batch_size": ROWS}


def life_of(first: int, stop: int, *, began: float | None = None) -> Life:
    state = state_after(first - 1) if first else None
    steps = [step_at(number) for number in range(first, stop)]
    return Life(0, float(first) if began is None else began, state, steps)


def differences(*lives: Life) -> list[str]:
    return compare(lives, Undisturbed(), 1)


def test_a_stream_that_goes_on_after_deaths_is_the_same() -> None:
    assert differences(life_of(0, 6), life_of(4, 9, began=6.5), life_of(9, 20, began=9.5)) == []
    # one that died before it wrote anything
    assert differences(life_of(0, 6), life_of(5, 5, began=6.5), life_of(5, 9, began=7)) == []


def test_what_differs_is_found() -> None:
    whole = life_of(0, 9)
    swapped = replace(whole, steps=[*whole.steps[:3], replace(whole.steps[3], digest="x"), *whole.steps[4:]])
    assert differences(swapped) == ["shard 0, epoch 0, step 3: other rows, or in another order"]
    mixed = replace(whole, steps=[replace(whole.steps[0], digest=None), *whole.steps[1:]])
    assert len(differences(mixed)) == 1
    lost = replace(whole, steps=whole.steps[:3] + whole.steps[4:])
    assert differences(lost) == ["shard 0, epoch 1, step 0: comes where step 3 of all is due"]
    twice = replace(whole, steps=whole.steps[:3] + whole.steps[2:])
    assert differences(twice) == ["shard 0, epoch 0, step 2: comes where step 3 of all is due"]
    assert differences(life_of(0, 6), life_of(7, 9, began=6.5)) == ["shard 0: steps 6 to 7 are missing"]


def test_recovery_is_the_time_until_those_that_were_held_up_go_on() -> None:
    quick = [step_at(number) for number in range(10)]
    held_up = [*quick[:5], step_at(5, time=8.0, wait=3.9)]
    lives = [Life(0, 0.0, None, held_up), Life(1, 0.0, None, quick)]
    assert find_recoveries(lives, [Kill(4.5, "coordinator")]) == {"coordinator": [3.5]}
    # what came only after the next kill was held up by both
    both = [Kill(4.5, "raylet"), Kill(6.0, "worker")]
    assert find_recoveries(lives, both) == {"raylet": [3.5], "worker": [2.0]}
    assert find_recoveries(lives, [Kill(8.5, "worker")]) == {}


def test_a_trainer_recovers_with_its_first_batch() -> None:
    back = Life(0, 6.2, state_after(4), [step_at(5, time=9.0, wait=0.1)])
    kills = [Kill(6.0, "trainer", 0)]
    assert find_recoveries([life_of(0, 6), back], kills) == {"trainer": [3.0]}


def test_what_is_read_again_is_no_throughput() -> None:
    lives = [life_of(0, 6), Life(0, 6.5, state_after(3), [step_at(n, time=n + 3.0) for n in range(4, 10)])]
    assert find_throughput(lives, 0.0, 5.0) == ROWS
    # steps 6 to 9 are new
    assert find_throughput(lives, 6.0, 14.0) == 4 * ROWS / 8.0


def test_kills_follow_from_the_seed_and_each_kind_comes_up() -> None:
    planned = list(plan_kills(3, 4 * len(KINDS), 60.0))
    assert planned == list(plan_kills(3, 4 * len(KINDS), 60.0)) != list(plan_kills(4, 4 * len(KINDS), 60.0))
    assert Counter(kill.kind for kill in planned) == dict.fromkeys(KINDS, 4)
    assert sum(kill.after_seconds for kill in planned) == pytest.approx(60.0, abs=12.0)


def test_a_line_that_death_cut_short_is_none(tmp_path: Path) -> None:
    path = tmp_path / "life"
    assert read_life(path, 0, 0.0, None).steps == []
    with path.open("a") as file:
        write_step(file, step_at(0))
        file.write('{"began": 1.0, "ti')
    assert read_life(path, 0, 0.0, None).steps == [step_at(0)]


def test_trainers_see_how_far_others_are(tmp_path: Path) -> None:
    one, other = (Pace(tmp_path / "pace", 2) for _ in range(2))
    one.set(0, 7)
    assert (other.least(), other.steps(), other.stopped) == (0, [7, 0], False)
    other.set(1, 9)
    other.stop()
    assert (one.least(), one.stopped) == (7, True)


def test_the_report_is_a_table() -> None:
    kills = [Kill(2.5, "worker"), Kill(6.0, "trainer", 0)]
    lives = [life_of(0, 6), life_of(4, 9, began=6.5)]
    report = make_report(
        lives, kills, Undisturbed(), seed=5, trainers=1, calm=(0.0, 2.0), disturbed=(2.0, 9.0)
    )
    assert report.passed
    assert (report.steps, report.reread_steps, report.killed, report.epochs) == (9, 2, 2, 2)
    text = draw_report(report)
    assert "differences from the undisturbed run: 0" in text
    assert text.splitlines()[2].split() == ["worker", "1", "0", "-", "-", "-", "-"]
    report.differences.append("shard 0: wrong")
    assert not report.passed
    assert "shard 0: wrong" in draw_report(report)
