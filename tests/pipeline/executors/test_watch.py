"""What watches a cluster: which one a user means, which run, and what is said of a coordinator that does not answer."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from windrow.core.errors import PlanError

pytest.importorskip("ray")

import ray

from windrow.pipeline.executors.ray import watch
from windrow.pipeline.executors.ray.cluster import ClusterAddress
from windrow.pipeline.executors.ray.job_file import JobFile, find_jobs
from windrow.pipeline.executors.ray.watch import _NAME, _read_report, choose_run, find_cluster

HERE = ["10.0.0.1:6379", "127.0.0.1:7000"]
JOB = JobFile("127.0.0.1:7000", "127.0.0.1", "5ecret", "/jobs/train.py")


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("10.0.0.1:6379", ClusterAddress("10.0.0.1:6379")),
        ("127.0.0.1:7000", ClusterAddress("127.0.0.1:7000", "127.0.0.1", "5ecret")),
        ("localhost:7000", ClusterAddress("127.0.0.1:7000", "127.0.0.1", "5ecret")),
    ],
)
def test_an_address_is_a_cluster_of_this_machine(address: str, found: ClusterAddress) -> None:
    assert find_cluster(address, HERE, [JOB]) == found


@pytest.mark.parametrize("address", [None, "auto"])
def test_the_only_cluster_of_this_machine_needs_no_address(address: str | None) -> None:
    assert find_cluster(address, HERE[1:], [JOB]).auth_token == "5ecret"
    assert find_cluster(address, HERE[:1], [JOB]) == ClusterAddress(HERE[0])
    with pytest.raises(
        PlanError, match=r"2 Ray clusters .* of 10.0.0.1:6379, 127.0.0.1:7000 \(.* for train.py\)"
    ):
        find_cluster(address, HERE, [JOB])
    with pytest.raises(PlanError, match=r"no Ray cluster runs on this machine.*threads"):
        find_cluster(address, [], [JOB])


def test_what_is_no_cluster_is_an_error_at_once() -> None:
    with pytest.raises(PlanError, match=r"is the address of a Ray client server: give .*host:port"):
        find_cluster("ray://10.0.0.1:10001", HERE, [])
    for address in ("10.0.0.1", "10.0.0.1:port", ":1"):
        with pytest.raises(PlanError, match="is not the address of a Ray cluster, host:port"):
            find_cluster(address, HERE, [])
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        # of another machine, as far as one can see
        with pytest.raises(
            PlanError, match=f"no node of the Ray cluster at {address} runs on this machine.*on a node"
        ):
            find_cluster(address, HERE, [])
    with pytest.raises(PlanError, match=f"no Ray cluster answers at {address}"):
        find_cluster(address, HERE, [])


def test_job_files_are_those_of_this_user(tmp_path: Path) -> None:
    folders = [tmp_path / f"windrow-ray-{name}" for name in ("own", "open", "broken", "linked", "empty")]
    for folder in folders:
        folder.mkdir()
    for folder in folders[:3]:
        JOB.write(folder)
    assert (folders[0] / "job.json").stat().st_mode & 0o777 == 0o600
    # Ray does this, so others can put files there, and lead this process to a cluster of theirs
    folders[0].chmod(0o777)
    (folders[1] / "job.json").chmod(0o622)
    (folders[2] / "job.json").write_text("{")
    (folders[3] / "job.json").symlink_to(folders[0] / "job.json")
    assert find_jobs(tmp_path) == [JOB]
    assert "5ecret" not in repr(JOB)


def _run(number: str, **changed: Any) -> dict[str, Any]:
    return {"id": number[-8:], "name": f"windrow-run-{number}", "actor": "ALIVE", **changed}


def test_a_pipeline_is_chosen_by_the_end_of_its_name() -> None:
    runs = [_run("a" * 24 + "5ec0ffee"), _run("b" * 24 + "0ddba11e")]
    assert choose_run(runs[:1], None) is runs[0]
    for pipeline in ("ffee", "5ec0ffee", runs[0]["name"]):
        assert choose_run(runs, pipeline) is runs[0]
    with pytest.raises(
        PlanError, match="2 pipelines are running: choose one with --pipeline, of 5ec0ffee, 0ddba11e"
    ):
        choose_run(runs, None)
    with pytest.raises(
        PlanError, match="--pipeline e names 2 pipelines: those that run are 5ec0ffee, 0ddba11e"
    ):
        choose_run(runs, "e")
    with pytest.raises(PlanError, match="--pipeline x names no pipeline"):
        choose_run(runs, "x")
    with pytest.raises(PlanError, match="no pipeline is running on this cluster"):
        choose_run([], "x")


@pytest.mark.parametrize(
    ("actor", "answer", "state", "said"),
    [
        ("RESTARTING", None, "restarting", "being restarted"),
        ("PENDING_CREATION", None, "starting", "not started yet"),
        ("ALIVE", TimeoutError("no answer within 5 s"), "silent", "busy or cut off: no answer within 5 s"),
        ("ALIVE", AttributeError("report"), "unknown", "it runs an older windrow, which cannot be asked"),
        ("ALIVE", ray.exceptions.ActorDiedError(), "ended", "has just died"),
        ("ALIVE", ValueError("no such actor"), "ended", "has just died"),
        ("ALIVE", OSError("odd\nlast line"), "unknown", "could not answer: last line"),
    ],
)
def test_a_coordinator_without_an_answer_has_a_reason(actor: str, answer: Any, state: str, said: str) -> None:
    found = _read_report(_run("x", actor=actor), answer)
    assert found["state"] == state
    assert said in found["problem"]


def test_names_of_coordinators() -> None:
    number = "0123456789abcdef" * 2
    for name in (f"windrow-coordinator-{number}", f"windrow-run-{number}", f"windrow-run-{number}-4"):
        assert _NAME.match(name)
    # the host of a shard's replicas is named after the run too
    for name in (f"windrow-run-{number}-0-{number}", f"my-windrow-run-{number}", "windrow-run-1"):
        assert not _NAME.match(name)


def test_the_environment_names_the_cluster_if_the_user_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray._private.services.find_gcs_addresses", lambda: set(HERE))
    monkeypatch.setattr(watch, "find_jobs", lambda: [JOB])
    watcher = watch.Watcher()
    monkeypatch.setenv("RAY_ADDRESS", HERE[1])
    assert watcher.find(None)["address"] == HERE[1]
    assert watcher.find(JOB.address)["token"] is True
    monkeypatch.setenv("RAY_ADDRESS", "")
    with pytest.raises(PlanError, match="2 Ray clusters"):
        watcher.find(None)
