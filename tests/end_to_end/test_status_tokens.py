"""``windrow status`` on clusters that ask for a token: that of a user, and that of a job of torchrun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.end_to_end.reading import eventually
from tests.end_to_end.status_script import SHARDS, make_pipe
from tests.end_to_end.torchrun_jobs import find_leftovers, start_torchrun, wait_for
from windrow.pipeline.executors.ray.job_file import find_jobs

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]

TOKEN, OTHER = "5ec7e7" * 10 + "0000", "0ddba1" * 10 + "0000"
_DRIVER = """
import sys, time
import ray
from tests.end_to_end.status_script import make_pipe

ray.init(address="local", num_cpus=1, include_dashboard=False, object_store_memory=80 * 2**20, log_to_driver=False,
         logging_level="ERROR")
batches = iter(make_pipe("ray").iter_batches(batch_size=100))
next(batches)
print(ray.get_runtime_context().gcs_address, flush=True)
sys.stdin.read()
"""


def run_status(address: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    return subprocess.run(
        [sys.executable, "-m", "windrow", "status", address, "--json"],
        cwd=REPOSITORY,
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def protected() -> Iterator[str]:
    """Provide the address of a cluster that asks for a token, with a pipeline."""
    environment = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}
    driver = subprocess.Popen(
        [sys.executable, "-c", _DRIVER],
        cwd=REPOSITORY,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with driver:
        assert driver.stdout is not None
        yield driver.stdout.readline().strip()
        assert driver.stdin is not None
        driver.stdin.close()


def test_the_token_opens_a_cluster(protected: str, tmp_path: Path) -> None:
    own = tmp_path / ".ray" / "auth_token"
    own.parent.mkdir()
    own.write_text(TOKEN)
    mode = {"RAY_AUTH_MODE": "token", "HOME": str(tmp_path / "empty")}
    for given in (
        {**mode, "RAY_AUTH_TOKEN": TOKEN},
        {**mode, "RAY_AUTH_TOKEN_PATH": str(own)},
        # the user's, on the user's machine
        {"HOME": str(tmp_path)},
    ):
        done = run_status(protected, **given)
        assert done.returncode == 0, done.stderr
        assert len(json.loads(done.stdout)["pipelines"]) == 1
        assert TOKEN not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": OTHER}, "does not accept this token"),
        ({"RAY_AUTH_MODE": "disabled"}, "asks for a token"),
        ({}, "asks for a token"),
        ({"RAY_AUTH_MODE": "token"}, "RAY_AUTH_MODE=token is set, and no token was found"),
    ],
)
def test_without_the_token_an_error_says_how_to_give_it(
    protected: str, environment: dict[str, str], said: str, tmp_path: Path
) -> None:
    # no token of this user's either
    done = run_status(protected, HOME=str(tmp_path), **environment)
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert said in line
    assert "Set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH" in line
    assert TOKEN not in line
    assert OTHER not in line


def test_the_token_of_a_job_of_torchrun_is_found(tmp_path: Path) -> None:
    script, observed = Path(__file__).with_name("status_script.py"), tmp_path / "observed"
    with tempfile.TemporaryDirectory(prefix="wt-", dir="/tmp") as tmp:
        job = start_torchrun(script, SHARDS, [str(observed)], tmp=tmp)
        try:
            assert eventually(lambda: bool(find_jobs(Path(tmp))), 120), "the job has a file"
            (found,) = find_jobs(Path(tmp))
            reports: list[dict[str, object]] = []

            def is_read() -> bool:
                done = run_status(found.address, TMPDIR=tmp, HOME=str(tmp_path))
                assert done.returncode == 0, done.stderr
                assert found.auth_token not in done.stdout + done.stderr
                reports[:] = json.loads(done.stdout)["pipelines"]
                return len(reports) == 1 and reports[0]["state"] == "reading"

            assert eventually(is_read, 120), reports
            assert (reports[0]["program"], reports[0]["shards"]) == ("status_script.py", SHARDS)
            # elsewhere the token is not found
            assert "asks for a token" in run_status(found.address, HOME=str(tmp_path)).stderr
        finally:
            observed.touch()
            done = wait_for(job)
        assert done.code == 0, done.output
        assert find_leftovers(tmp) == []
    shards = make_pipe("threads").split(SHARDS, equal=True)
    expected = [
        [row for batch in shard.iter_batches(100) for row in batch["id"].tolist()] for shard in shards
    ]
    assert [done.ranks[rank] for rank in range(SHARDS)] == [[rows] for rows in expected]
