"""Ranks of torchrun share one run: the order of split(), each block decoded once, nothing left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import windrow
from tests.end_to_end.torchrun_jobs import find_leftovers, run_torchrun, start_torchrun, wait_for
from tests.library_versions import is_older

SCRIPT = Path(__file__).with_name("torchrun_script.py")
ROWS = 2_003


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("rows")
    for part in range(4):
        rows = range(part * 501, min(ROWS, (part + 1) * 501))
        pq.write_table(pa.table({"x": rows}), folder / f"{part}.parquet", row_group_size=260)
    return str(folder)


def _split(data: str, n: int) -> tuple[list[Any], int]:
    """The streams of split(n), and the number of tasks that read them."""
    pipe = windrow.read_parquet(data).window(blocks_per_window=2).repeat(2).random_shuffle_each_window(seed=7)
    shards = pipe.options(executor="threads", progress=False).split(n, equal=True)
    streams = [
        [
            [x for batch in epoch.iter_batches(batch_size=50) for x in batch["x"].tolist()]
            for epoch in shard.iter_epochs()
        ]
        for shard in shards
    ]
    tasks = shards[0].stats().run.tasks
    for shard in shards:
        shard.close()
    return streams, tasks


@pytest.mark.parametrize(
    ("ranks", "cases"),
    [
        pytest.param(1, ["stream"], marks=pytest.mark.nightly),
        (2, ["stream"]),
        pytest.param(2, ["dataloader", "attached", "stream"], marks=pytest.mark.nightly),
        pytest.param(4, ["stream"], marks=pytest.mark.nightly),
    ],
)
def test_ranks_share_one_run(data: str, ranks: int, cases: list[str], tmp_path: Path) -> None:
    done = run_torchrun(SCRIPT, ranks, [data, str(tmp_path / "state"), *cases])
    assert done.code == 0, done.output
    streams, tasks = _split(data, ranks)
    for rank, expected in enumerate(streams):
        found = dict(zip(cases, done.ranks[rank], strict=True))
        assert found["stream"] == [expected, tasks]
        assert found.get("attached", [expected, tasks, rank, ranks]) == [expected, tasks, rank, ranks]
        assert found.get("dataloader", expected) == expected


def test_ranks_without_ray_read_for_themselves(data: str, tmp_path: Path) -> None:
    done = run_torchrun(SCRIPT, 2, [data, str(tmp_path / "state"), "without_ray"])
    assert done.code == 0, done.output
    streams, tasks = _split(data, 2)
    for rank, expected in enumerate(streams):
        ((stream, own_tasks, (warning,)),) = done.ranks[rank]
        assert (stream, own_tasks) == (expected, tasks)
        assert warning == (
            "each of the 2 ranks reads and decodes every window for itself, 2 times the work of one run that they "
            'share: pip install "windrow[ray]"'
        )


def test_ranks_that_read_for_themselves_compare_where_they_begin(data: str, tmp_path: Path) -> None:
    done = run_torchrun(SCRIPT, 2, [data, str(tmp_path / "state"), "begins_otherwise"])
    assert done.code == 0, done.output
    found = list(zip(*(done.ranks[rank][0] for rank in range(2)), strict=True))
    for alike in found[:2]:
        assert all(isinstance(batches, int) for batches in alike), alike
    for otherwise, message in zip(found[2:], ("shuffle +seed", "batches: ", "state_dict: "), strict=True):
        # the rank that begins later
        (error,) = (each for each in otherwise if not isinstance(each, int))
        assert error[0] == "PlanError"
        assert re.search(f"do not read the same.*{message}", error[1], re.DOTALL), error[1]


@pytest.mark.nightly
def test_bad_use_is_one_error_on_every_rank(data: str, tmp_path: Path) -> None:
    cases = ["other_seed", "other_pipeline", "other_batch_size", "absent_rank"]
    done = run_torchrun(SCRIPT, 2, [data, str(tmp_path / "state"), *cases])
    assert done.code == 0, done.output
    expected = [
        ["PlanError", "do not build the same pipeline.*rank 0 .*rank 1.*shuffle +seed 7 +seed 8"],
        [
            "PlanError",
            "equal: rank 0 'pad', rank 1 True.*transforms: rank 0 shuffle, rank 1 shuffle, map_batches",
        ],
        ["PlanError", "is being read with batch_size=5., drop_last=False; shard . asks for batch_size=5."],
    ]
    for rank in range(2):
        for found, (kind, message) in zip(done.ranks[rank], expected, strict=False):
            assert found[0] == kind
            assert re.search(message, found[1], re.DOTALL), found[1]
    warned, failed = done.ranks[0][3:]
    waits = "rank 0 waits in shard() for rank 1 of 2 to make its call number 4 of shard()"
    assert warned[0].startswith(waits)
    assert failed[0] == "StallError"
    assert failed[1].startswith(waits)
    assert done.ranks[1][3:] == ["came too late"]


# on every change a job of the docs ends without cleanup, and resumes with another number of ranks
@pytest.mark.nightly
def test_killed_rank_is_restarted_and_resumes(data: str, tmp_path: Path) -> None:
    options = ["--max-restarts=1", "--monitor-interval=0.1"]
    done = run_torchrun(SCRIPT, 2, [data, str(tmp_path / "state"), "killed"], options=options)
    assert done.code == 0, done.output
    streams, _ = _split(data, 2)
    for rank in range(2):
        before, after = done.ranks[rank]
        assert _join(before, after) == streams[rank]
    # another number of ranks resumes from the same state, in the order of all ranks' steps
    done = run_torchrun(SCRIPT, 1, [data, str(tmp_path / "state"), "resumed"])
    rest = done.ranks[0][0]
    state = json.loads((tmp_path / "state").read_text())
    (whole,), _ = _split(data, 1)
    assert rest == [whole[1][state["row"] :]]
    assert state["epoch"] == 1
    assert state["row"] == 3 * 2 * 50


def _join(*parts: list[Any]) -> list[list[int]]:
    """The rows by epoch of batches that successive processes took."""
    epochs: dict[int, list[int]] = {}
    for number, _, rows in (batch for part in parts for batch in part):
        epochs.setdefault(number, []).extend(rows)
    return [epochs[number] for number in sorted(epochs)]


@pytest.mark.nightly
@pytest.mark.skipif(is_older("torch", 2, 6), reason="torch before 2.6 has no fully_shard")
def test_fsdp_resumes_from_a_distributed_checkpoint_with_other_ranks(data: str, tmp_path: Path) -> None:
    arguments = [data, str(tmp_path / "state")]
    saved = run_torchrun(SCRIPT, 2, [*arguments, "fsdp_save"])
    assert saved.code == 0, saved.output
    streams, _ = _split(data, 2)
    for rank, stream in enumerate(streams):
        (batches,) = saved.ranks[rank]
        assert [x for batch in batches for x in batch] == [*stream[0], *stream[1][: 4 * 50]]
    resumed = run_torchrun(SCRIPT, 3, [*arguments, "fsdp_resume"])
    assert resumed.code == 0, resumed.output
    (whole,), _ = _split(data, 1)
    parts = [resumed.ranks[rank][0][0] for rank in range(3)]
    # every rank has the same number of steps, and each step's rows follow those of the step before
    assert len({len(part) for part in parts}) == 1
    rows = [x for step in zip(*parts, strict=True) for batch in step for x in batch]
    rest = whole[1][4 * 2 * 50 :]
    assert rows == rest[: len(rows)]
    assert len(rest) - len(rows) < 3


@pytest.mark.nightly
def test_two_jobs_of_a_node_do_not_meet_and_sigkill_leaves_nothing(data: str, tmp_path: Path) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="wt-", dir="/tmp") as killed,
        tempfile.TemporaryDirectory(prefix="wt-", dir="/tmp") as other,
    ):
        jobs = [
            start_torchrun(SCRIPT, 2, [data, str(tmp_path / "a"), "wait_for_kill"], tmp=killed),
            start_torchrun(SCRIPT, 2, [data, str(tmp_path / "b"), "stream"], tmp=other),
        ]
        victim = jobs[0]
        assert victim.stdout is not None
        reading: list[str] = []
        while len(reading) < 2:
            line = victim.stdout.readline()
            assert line, "".join(reading)
            reading += [line] if "reading" in line else []
        finished = wait_for(jobs[1])
        streams, tasks = _split(data, 2)
        assert [finished.ranks[rank] for rank in range(2)] == [[[stream, tasks]] for stream in streams]
        assert find_leftovers(other) == []
        assert any("raylet" in found for found in find_leftovers(killed))
        # rank 0 and the launcher at once: only the supervisor is left to clean up
        for process in _find_ranks(killed):
            os.kill(process, signal.SIGKILL)
        victim.kill()
        victim.communicate(timeout=60)
        deadline = time.monotonic() + 60
        while find_leftovers(killed) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert find_leftovers(killed) == []


def _find_ranks(tmp: str) -> list[int]:
    found = (
        line.split(":")[0].removeprefix("process ") for line in find_leftovers(tmp) if SCRIPT.name in line
    )
    return [int(number) for number in found]
