"""``windrow status``: the table, its lines for narrow terminals, rates between refreshes, JSON, and what is escaped."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from rich.console import Console

import windrow
from windrow.cli import status as module
from windrow.cli.main import main
from windrow.cli.status_table import Rates, render_status
from windrow.core.errors import StallError

NOW = 1_700_000_000.0
DRIVER = {"id": "5ec0ffee", "name": "windrow-coordinator-5ec0ffee", "actor": "ALIVE", "restarts": 0}
DRIVER |= {"pid": 4242, "host": "node-1", "program": "train.py", "started": NOW - 150}


def make_trainer(shard: int, rows: int, work: float, wait: float, start: float = 0.0) -> dict[str, Any]:
    waits = {"decode": wait, "start": start}
    return {
        "shard": shard,
        "replica": "",
        "rows": rows,
        "bytes": 8 * rows,
        "work_seconds": work,
        "waits": waits,
    }


def make_run(trainers: Sequence[Mapping[str, Any]] = (), **changed: Any) -> dict[str, Any]:
    report = {
        "windrow": windrow.__version__,
        "source": "Parquet /data/train",
        "state": "reading",
        "failure": "",
        "shards": 2,
        "epoch": 0,
        "epochs": 3,
        "window": 3,
        "windows": 20,
        "rows_per_second": 12_345.6,
        "bytes_per_second": 2.5e6,
        "trainers": list(trainers) or [make_trainer(0, 100, 3.0, 1.0)],
        "held_bytes": 2**20,
        "memory_bytes": 2**30,
        "wait_share": 0.25,
        "corrupt_blocks": 0,
        "limit": "Decoding limits this run: add CPUs.",
    }
    return {**DRIVER, **report, **changed}


def show(runs: Sequence[Any], *, width: int = 110, rates: Rates | None = None, **more: Any) -> str:
    console = Console(width=width, highlight=False, emoji=False, markup=False)
    with console.capture() as captured:
        console.print(
            render_status("10.0.0.1:6379", {"pipelines": runs, "ended": None, **more}, NOW, width, rates)
        )
    return captured.get()


def test_the_table_has_a_row_for_each_pipeline_and_what_limits_it() -> None:
    other = make_run(
        id="0ddba11", name="other", epochs=None, windows=None, window=7, epoch=2, limit="Memory."
    )
    lines = show([make_run(), other]).splitlines()
    assert lines[0] == "2 pipelines on the Ray cluster at 10.0.0.1:6379"
    assert lines[2].split() == [
        "pipeline",
        "epoch",
        "window",
        "rows/s",
        "MB/s",
        "trainers",
        "waited",
        "memory",
    ]
    cells = "5ec0ffee 1/3 4/20 12,346 2.5 1 of 2 25% 1.0 MiB of 1.0 GiB"
    assert " ".join(lines[3].split()) == cells
    assert lines[4].split()[:3] == ["0ddba11", "3", "8"]
    text = "\n".join(lines)
    assert re.search(
        r"5ec0ffee  train.py, process 4242 on node-1, started \d\d:\d\d:\d\d \(2 min ago\)\n"
        r"  reads Parquet /data/train\n  Decoding limits this run: add CPUs\.",
        text,
    )
    assert text.endswith("  Memory.")


@pytest.mark.parametrize("width", [20, 40, 60])
def test_a_narrow_terminal_gets_lines_in_which_nothing_is_cut_off(width: int) -> None:
    text = show([make_run()], width=width)
    assert all(len(line) <= width for line in text.splitlines())
    whole = "".join(line.strip() for line in text.splitlines()).replace(" ", "")
    for value in ("5ec0ffee", "4/20", "12,346", "1.0MiBof1.0GiB", "Decodinglimitsthisrun:addCPUs."):
        assert value in whole
    assert text.index("5ec0ffee") < text.index("12,346") < text.index("Decoding")


def test_names_cannot_change_what_a_terminal_shows() -> None:
    text = show([make_run(program="a\x1b[2Jb", source="s\r\x07", limit="[red]l\x9b1m", host="h\n\u202e")])
    assert "a\\x1b[2Jb" in text
    assert "s\\r\\x07" in text
    # not markup either
    assert "[red]l\\x9b1m" in text
    assert "h\\n\\u202e" in text
    assert not set(text) & set("\x1b\r\x07\x9b\u202e")


@pytest.mark.parametrize("width", [110, 40])
def test_a_pipeline_that_does_not_answer_says_why(width: int) -> None:
    silent = {**DRIVER, "state": "restarting", "problem": "its coordinator is being restarted", "restarts": 2}
    text = show([silent], width=width)
    assert "restarting" in text
    assert "its coordinator is being restarted" in text
    assert "restarted 2 times" in text


def test_what_users_should_know_is_said() -> None:
    text = show([make_run(windrow="0.0.1", corrupt_blocks=3, failure="the disk is full", state="failed")])
    assert f"runs windrow 0.0.1; this command is {windrow.__version__}" in text
    assert "skips 3 corrupt blocks" in text
    assert "it failed: the disk is full" in text
    assert "limits" not in text
    assert "no trainer has reported a batch yet" in show([make_run(limit="", trainers=[])])


def test_the_end_of_the_last_epoch_is_its_last_window() -> None:
    assert show([make_run(epoch=2, window=20)]).splitlines()[3].split()[1:3] == ["3/3", "20/20"]


def test_no_pipeline_is_said_and_which_was_the_last() -> None:
    none = "no pipeline is running on the Ray cluster at 10.0.0.1:6379"
    assert show([]).split() == none.split()
    ended = {"id": "5ec0ffee", "ended": NOW - 12, "death": "killed by ray.kill"}
    found = " ".join(show([], ended=ended).split())
    assert found == f"{none}; the last one, 5ec0ffee, ended 12 s ago: killed by ray.kill"


def test_rates_are_those_since_ten_refreshes_before() -> None:
    rates = Rates()
    # at first slow and half of the time waiting, then fast, and for the last refreshes without a report
    times = [*range(20), *range(20, 27), 26, 26, 26]
    for second in times:
        fast = max(0, second - 20)
        rows, waited = 100 * second + 200 * fast, 0.5 * (second - fast)
        run = make_run([make_trainer(0, rows, second - waited, waited, 5.0), make_trainer(1, 0, 0.0, 0.0)])
        rates.note([run])
        if not second:
            assert rates.of(run) == run, "one report has only its means"
    found = rates.of(run)
    assert found["rows_per_second"] == pytest.approx(300)
    assert found["bytes_per_second"] == pytest.approx(2_400)
    assert found["wait_share"] == pytest.approx(0)
    assert show([run], rates=rates).splitlines()[3].split()[3] == "300"


def test_waiting_for_the_start_is_no_wait() -> None:
    rates = Rates()
    for trainer in (make_trainer(0, 0, 0.0, 0.0), make_trainer(0, 100, 1.0, 1.0, start=2.0)):
        run = make_run([trainer])
        rates.note([run])
    assert rates.of(run)["wait_share"] == pytest.approx(0.5)
    assert rates.of(run)["rows_per_second"] == pytest.approx(25)


def test_rates_of_trainers_that_stand_still_or_start_again() -> None:
    rates = Rates()
    run = make_run([make_trainer(0, 100, 3.0, 1.0)])
    for _ in range(3):
        rates.note([run])
    assert rates.of(run)["rows_per_second"] == 0
    assert rates.of(run)["wait_share"] == run["wait_share"]
    # after a failure, trainers count from zero
    again = make_run([make_trainer(0, 10, 5.0, 0.0)])
    rates.note([again])
    assert rates.of(again)["rows_per_second"] == 0
    rates.note([])
    assert rates.of(run) == run, "a pipeline that is gone is forgotten"


class FakeCluster:
    """Answers with reports, the last one again and again, or raises them."""

    address = "10.0.0.1:6379"

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    def status(self) -> dict[str, Any]:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, BaseException):
            raise answer
        return {"pipelines": answer, "ended": None}


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    """Take the place of the cluster, and check that it is closed."""
    cluster = FakeCluster([make_run()])
    closed: list[str | None] = []

    @contextmanager
    def watching(address: str | None) -> Iterator[FakeCluster]:
        try:
            yield cluster
        finally:
            closed.append(address)

    monkeypatch.setattr(module, "watching", watching)
    yield cluster
    assert closed == ["here:1"]


def test_output_that_is_no_terminal_gets_one_table(
    fake: FakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", "here:1"]) == 0
    assert "12,346" in capsys.readouterr().out


def test_json_is_what_coordinators_report(fake: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "here:1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "address": "10.0.0.1:6379",
        "pipelines": [make_run()],
        "ended": None,
    }


@pytest.mark.parametrize(
    ("end", "code", "said"), [(KeyboardInterrupt(), 130, "interrupted"), (StallError("gone"), 1, "gone")]
)
def test_a_terminal_is_updated_until_the_user_or_the_cluster_ends(
    fake: FakeCluster,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    end: BaseException,
    code: int,
    said: str,
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    fake.answers = [[make_run(window=window)] for window in range(3)] + [end]
    assert main(["status", "here:1", "--interval", "0.1"]) == code
    output = capsys.readouterr()
    assert all(f"{window}/20" in output.out for window in (1, 2, 3))
    assert said in output.err


@pytest.mark.parametrize("interval", ["0", "-1", "nan", "soon", "1e9"])
def test_an_interval_is_seconds(interval: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["status", "here:1", f"--interval={interval}"])
    assert ended.value.code == 2
    assert "is not a number of seconds from 0.1 to 3600.0" in capsys.readouterr().err
