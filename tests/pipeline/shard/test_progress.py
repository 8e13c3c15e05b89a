"""Progress: what it says, a live view in a terminal, and lines in a log."""

from __future__ import annotations

import io
import re
import sys
from typing import Any, cast

import pytest
from rich.console import Console

import windrow
from windrow.pipeline.coordinator.requests import EpochFacts
from windrow.pipeline.shard import progress
from windrow.pipeline.shard.waits import Totals
from windrow.pipeline.statistics.phases import TrainerStats
from windrow.pipeline.statistics.stats import RunStats
from windrow.shuffle.order.shard_assignment import ShardAssignment


def facts(total: int | None) -> EpochFacts:
    return EpochFacts(2, 0, 180, ShardAssignment(4, 100), 1000, total)


class Client:
    """A coordinator whose run has another trainer."""

    def run_stats(self, *, spans: bool) -> RunStats:
        assert not spans, "spans are large, and not shown"
        other = TrainerStats(1, bytes=10**9, work_seconds=1.0, waits={"decode": 1.0})
        return RunStats(held_bytes=2**30, memory_bytes=2**31, trainers=(other,))


class Screen(io.StringIO):
    """Standard error, which is a terminal or not."""

    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


def view(total: int | None = 10_000, epochs: int | None = 10) -> progress.ProgressView:
    return progress.ProgressView(cast("Any", Client()), facts(total), Totals(0), epochs)


def describe(
    run: RunStats, *since: TrainerStats, total: int | None = None, epochs: int | None = None, **place: int
) -> str:
    shown = view(total, epochs)
    shown._place = (place["window"], place["step"])
    shown._rates = shown._describe_rates(run, since)
    return " · ".join(shown._describe(progress._describe_next((2, place["window"]), run)))


def test_progress_shows_the_position_and_what_trainers_wait_for() -> None:
    run = RunStats(
        held_bytes=2**30,
        memory_bytes=2**31,
        windows_ready={(2, 40): 1.0, (2, 41): 0.999, (2, 42): 0.0},
    )
    since = [
        TrainerStats(0, bytes=2 * 10**9, work_seconds=0.6, waits={"decode": 0.4}),
        TrainerStats(1, bytes=10**9, work_seconds=0.8, waits={"decode": 0.1, "storage": 0.1}),
    ]
    text = describe(run, *since, total=10_000, epochs=10, window=40, step=17)
    assert text == (
        "epoch 3/10 · step 17/25 · window 41/180, next 99 % ready · 3,000.0 MB/s · trainers wait 30.0%, for decoding"
        " · 1.0 GiB of 2.0 GiB"
    )


def test_small_rates_are_not_rounded_to_nothing() -> None:
    since = TrainerStats(0, bytes=4_800_000, work_seconds=1.0)
    assert " · 4.8 MB/s · " in describe(RunStats(), since, window=0, step=1)


def test_no_cause_is_named_where_trainers_hardly_wait() -> None:
    since = TrainerStats(0, bytes=1, work_seconds=0.99, waits={"decode": 0.01})
    assert "trainers wait 1.0% ·" in describe(RunStats(), since, window=0, step=1)


def test_unknown_counts_and_endless_pipelines_leave_out_their_ends() -> None:
    text = describe(RunStats(), window=0, step=1)
    assert text.startswith("epoch 3 · step 1 · window 1/180 · ")


@pytest.mark.parametrize(
    ("ready", "shown"),
    [({}, None), ({(2, 179): 1.0}, None), ({(2, 40): 1.0}, None), ({(2, 179): 1.0, (3, 0): 1.0}, 100)],
)
def test_next_window_is_announced_across_epochs(
    ready: dict[tuple[int, int], float], shown: int | None
) -> None:
    text = describe(RunStats(windows_ready=ready), window=179, step=1)
    assert f"window 180/180{'' if shown is None else f', next {shown} % ready'} · 0.0 MB/s" in text


@pytest.mark.parametrize("asked", [True, False])
def test_progress_is_shown_on_request(asked: bool) -> None:
    assert progress.is_shown(asked) is asked


def test_auto_shows_nothing_without_a_terminal() -> None:
    assert progress.is_shown("auto") is False


def test_a_log_gets_a_line_every_half_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Screen(is_terminal=False)
    monkeypatch.setattr(sys, "stderr", log)
    shown = view()
    start = shown._next - progress._LOG_SECONDS
    for second in range(0, 95, 5):
        shown.show(start + second, window=second, step=second)
    shown.end()
    lines = log.getvalue().splitlines()
    assert [re.findall(r"step (\d+)/25", line) for line in lines] == [["30"], ["60"], ["90"]]
    assert "trainers wait 50.0%, for decoding" in lines[0], "the other trainer's report"
    assert "trainers wait 0.0% ·" in lines[1], "nothing since"
    assert "\r" not in log.getvalue()
    assert "\x1b" not in log.getvalue()


@pytest.mark.parametrize("total", [10_000, None])
def test_a_terminal_gets_two_lines_that_are_redrawn(
    total: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Screen(is_terminal=True)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    shown = view(total)
    before = sys.stdout
    for second in (1.5, 1.6, 3.0):
        shown.show(shown._next + second, window=40, step=17)
    assert sys.stdout is before, "what the program prints is its own"
    shown.end()
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.getvalue())
    assert text.count("epoch 3/10 · step 17") >= 2
    assert "window 41/180" in text
    assert "1.0 GiB of 2.0 GiB" in text
    assert screen.getvalue().count("\x1b[2K") >= 2, "the lines before are erased"


class Output:
    """The output of a cell: what ``display`` is given, and what replaces it."""

    def __init__(self) -> None:
        self.outputs: list[list[dict[str, str]]] = []

    def display(self, shown: dict[str, str], *, raw: bool, display_id: bool) -> Any:
        assert raw
        assert display_id
        self.outputs.append([shown])
        return self

    def update(self, shown: dict[str, str], *, raw: bool) -> None:
        assert raw
        self.outputs[-1].append(shown)


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Output:
    """Make this process that of a notebook, as rich sees it."""
    output = Output()
    monkeypatch.setattr(pytest.importorskip("IPython.display"), "display", output.display)
    monkeypatch.setattr("rich._console", Console(force_jupyter=True))
    return output


@pytest.mark.parametrize(("total", "step"), [(10_000, "step 20/25"), (None, "step 20")])
def test_a_notebook_gets_one_output_that_is_replaced(
    total: int | None, step: str, notebook: Output, capsys: pytest.CaptureFixture[str]
) -> None:
    assert progress.is_shown("auto")
    shown = view(total)
    start = shown._next - progress._SHOW_SECONDS
    for tenth in range(1, 31):
        shown.show(start + tenth / 10 + 0.001, window=40, step=tenth - 10)
    assert [len(one) for one in notebook.outputs] == [3], "once a second"
    shown.end()
    shown.end()
    (drawn,) = notebook.outputs
    assert len(drawn) == 4, "and once at the end"
    assert drawn[-1]["text/plain"].startswith(f"epoch 3/10 · {step}")
    assert "window 41/180 · " in drawn[-1]["text/plain"]
    assert "1.0 GiB of 2.0 GiB" in drawn[-1]["text/html"]
    assert ("━" in drawn[-1]["text/html"]) == (total is not None)
    assert capsys.readouterr() == ("", "")


def test_an_epoch_of_less_than_a_second_leaves_no_output(notebook: Output) -> None:
    shown = view()
    shown.show(shown._next - 0.5, window=0, step=1)
    shown.end()
    assert notebook.outputs == []


@pytest.mark.usefixtures("notebook")
def test_workers_of_a_notebook_draw_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multiprocessing.parent_process", lambda: "the notebook")
    assert not progress.is_shown("auto")


def test_only_the_first_shard_of_a_run_shows_progress(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "_LOG_SECONDS", 0.0)
    pipe = windrow.range(40).repeat(1).random_shuffle_each_window(seed=7).options(progress=True)
    for shard in pipe.split(2):
        for _ in shard.iter_batches(batch_size=5):
            pass
    lines = capsys.readouterr().err.splitlines()
    assert [re.findall(r"step (\d)/4 · window 1/1", line) for line in lines] == [["1"], ["2"], ["3"], ["4"]]
