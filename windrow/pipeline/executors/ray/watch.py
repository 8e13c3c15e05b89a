"""Watches the runs of a Ray cluster from a process of its own, which answers requests, a JSON value a line.

Ray aborts or crashes a process in some failures, such as a wrong token, and retries others for minutes. So the command
runs this in a child, which it can end at any time, and the child ends when its standard input does. Each answer has
``error``, a sentence, or what was asked for.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import ray
from ray._private import services

from windrow.core.errors import PlanError, StallError, WindrowError
from windrow.pipeline.executors.ray.cluster import ClusterAddress, connect, find_refusal, use_own_token
from windrow.pipeline.executors.ray.job_file import JobFile, find_jobs
from windrow.pipeline.executors.ray.run_report import find_version, unpack_spans

# of a run's coordinator, and of one whose shards DataLoader workers divide
_NAME = re.compile(r"(windrow-coordinator|windrow-run)-[0-9a-f]{32}(-\d+)?$")
_ID_LETTERS = 8
_LISTEN_SECONDS = 5.0
_ANSWER_SECONDS = 5.0
_SPANS_SECONDS = 60.0
# states of Ray's actors
_LIVING = ("ALIVE", "RESTARTING", "PENDING_CREATION", "DEPENDENCIES_UNREADY")
_MODE = "RAY_AUTH_MODE"
# what Ray says of an actor that its owner needs no more
_ENDED = "all references to the actor were removed"
_NOT_HERE = "Ray connects a process through its own machine's part of the cluster, so run this on a node of the cluster"


def main() -> None:
    """Answer requests until standard input ends."""
    # whatever else prints, prints to standard error
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    watcher = Watcher()
    for line in sys.stdin:
        try:
            answer = watcher.answer(**json.loads(line))
        except (WindrowError, OSError, RuntimeError, ray.exceptions.RayError) as error:
            answer = {"error": " ".join(str(error).split()) or type(error).__name__}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    # Ray's own end of a process says goodbye to the cluster; nothing of this process would be lost without it
    with suppress(Exception):
        ray.shutdown()


class Watcher:
    """Connects this process to a cluster once, and asks the coordinators there."""

    def __init__(self) -> None:
        self._handles: dict[str, Any] = {}

    def answer(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Answer one request."""
        requests: dict[str, Callable[..., dict[str, Any]]] = {
            "find": self.find,
            "connect": self.connect,
            "status": self.status,
            "spans": self.spans,
        }
        return requests[do](**arguments)

    def find(self, address: str | None) -> dict[str, Any]:
        """Find the cluster that a user means, and whether this process has a token for it."""
        self._cluster = find_cluster(
            address or os.environ.get("RAY_ADDRESS") or None,
            sorted(services.find_gcs_addresses()),
            find_jobs(),
        )
        if not self._cluster.auth_token:
            use_own_token()
        has_token = bool(self._cluster.auth_token) or os.environ.get(_MODE, "").lower() == "token"
        return {"address": self._cluster.address, "token": has_token}

    def connect(self) -> dict[str, Any]:
        """Connect to the cluster that was found."""
        connect(self._cluster)
        return {}

    def status(self) -> dict[str, Any]:
        """What each run of the cluster reports."""
        found = list_runs(_LIVING)
        reports = self._ask(found, lambda handle: handle.report, _ANSWER_SECONDS)
        runs = [{**run, **_read_report(run, reports.get(run["name"]))} for run in found]
        # coordinators that are started together can be alive in another order
        runs.sort(key=lambda run: (run["started"], run["name"]))
        ended = [] if runs else list_runs(["DEAD"])
        return {"pipelines": runs, "ended": max(ended, key=lambda run: run["ended"], default=None)}

    def spans(self, pipeline: str | None) -> dict[str, Any]:
        """The spans of the timeline of one run, the only one if none is given."""
        run = choose_run(list_runs(_LIVING), pipeline)
        (answer,) = self._ask([run], lambda handle: handle.report_spans, _SPANS_SECONDS).values()
        problem = _read_report(run, answer) if not isinstance(answer, bytes) else None
        if problem is not None:
            raise StallError(f"pipeline {run['id']} has no timeline to fetch: {problem['problem']}")
        return {"id": run["id"], "spans": unpack_spans(answer)}

    def _ask(
        self, runs: Sequence[Mapping[str, Any]], method: Callable[[Any], Any], seconds: float
    ) -> dict[str, Any]:
        """The answer of each run's coordinator, or the exception that says why there is none."""
        answers: dict[str, Any] = {}
        pending: dict[Any, str] = {}
        for run in runs:
            name = run["name"]
            if run["actor"] != "ALIVE":
                # its call would run when it has started
                continue
            try:
                if name not in self._handles:
                    self._handles[name] = ray.get_actor(name, namespace=run["namespace"])
                # a call that is not answered is not repeated to a restarted coordinator
                pending[method(self._handles[name]).options(max_task_retries=0).remote()] = name
            except (ValueError, AttributeError, ray.exceptions.RayError) as error:
                answers[name] = error
        if pending:
            ready, late = ray.wait(list(pending), num_returns=len(pending), timeout=seconds)
            for reference in ready:
                answers[pending[reference]] = _get(reference)
            for reference in late:
                answers[pending[reference]] = TimeoutError(f"no answer within {seconds:.0f} s")
        return answers


def _get(reference: Any) -> Any:
    try:
        return ray.get(reference, timeout=_ANSWER_SECONDS)
    except Exception as error:  # whatever the coordinator has raised
        return error


def _read_report(run: Mapping[str, Any], answer: Any) -> dict[str, Any]:
    """A coordinator's report, or why there is none."""
    if isinstance(answer, Mapping):
        return dict(answer)
    if run["actor"] == "RESTARTING":
        return {
            "state": "restarting",
            "problem": "its coordinator is being restarted, and shards wait for it",
        }
    if run["actor"] != "ALIVE":
        return {"state": "starting", "problem": "its coordinator has not started yet"}
    if isinstance(answer, TimeoutError):
        return {"state": "silent", "problem": f"its coordinator is busy or cut off: {answer}"}
    cause = getattr(answer, "cause", answer)
    if isinstance(cause, AttributeError):
        return {
            "state": "unknown",
            "problem": f"it runs an older windrow, which cannot be asked: this one is {find_version()}",
        }
    if isinstance(answer, (ValueError, ray.exceptions.RayActorError)):
        return {"state": "ended", "problem": "its coordinator has just died"}
    text = str(answer).strip().splitlines() or [type(answer).__name__]
    return {"state": "unknown", "problem": f"its coordinator could not answer: {text[-1]}"}


def list_runs(states: Iterable[str]) -> list[dict[str, Any]]:
    """The coordinators in some states of Ray's actors, in the order of their start; from Ray's control plane."""
    from ray._private.state import jobs, state
    from ray.core.generated.gcs_pb2 import ActorTableData

    accessor = state._connect_and_get_accessor()
    tables = [
        ActorTableData.FromString(row) for each in states for row in accessor.get_actor_table(None, each)
    ]
    coordinators = [table for table in tables if _NAME.match(table.name)]
    drivers = {job["JobID"]: job for job in jobs()} if coordinators else {}
    return sorted(
        (_describe_actor(table, drivers.get(table.job_id.hex(), {})) for table in coordinators),
        key=lambda run: (run["started"], run["name"]),
    )


def _describe_actor(table: Any, driver: Mapping[str, Any]) -> dict[str, Any]:
    """What Ray's control plane knows of a coordinator; its own report says more."""
    from ray.core.generated.gcs_pb2 import ActorTableData

    cause = table.death_cause.actor_died_error_context.error_message
    return {
        "id": table.name[-_ID_LETTERS:],
        "name": table.name,
        "namespace": table.ray_namespace,
        "actor": ActorTableData.ActorState.Name(table.state),
        "restarts": table.num_restarts,
        "node": table.address.ip_address,
        "pid": driver.get("DriverPid", 0),
        "host": driver.get("DriverIPAddress", ""),
        "program": "",
        # Ray counts milliseconds
        "started": (table.start_time or driver.get("StartTime", 0)) / 1000,
        "ended": table.end_time / 1000,
        "death": "" if _ENDED in cause else next(iter(cause.splitlines()), "").strip(),
    }


def choose_run(runs: Sequence[Mapping[str, Any]], pipeline: str | None) -> Mapping[str, Any]:
    """The run that a user means; raises a `PlanError` that lists them if that is not one of them."""
    found = [run for run in runs if pipeline is None or run["name"].endswith(pipeline)]
    if len(found) == 1:
        return found[0]
    if not runs:
        raise PlanError("no pipeline is running on this cluster")
    listed = ", ".join(str(run["id"]) for run in runs)
    if pipeline is None:
        raise PlanError(f"{len(runs)} pipelines are running: choose one with --pipeline, of {listed}")
    what = "no pipeline" if not found else f"{len(found)} pipelines"
    raise PlanError(f"--pipeline {pipeline} names {what}: those that run are {listed}")


def find_cluster(address: str | None, here: Sequence[str], jobs: Sequence[JobFile]) -> ClusterAddress:
    """The cluster that a user means by ``address``, or the only one of which this machine is a node.

    ``here`` are the addresses of those, and ``jobs`` what windrow has started of them. Raises a `PlanError` if there
    is none.
    """
    own = {job.address: ClusterAddress(job.address, job.ip, job.auth_token) for job in jobs}
    if address is not None and address != "auto":
        if address.startswith("ray://"):
            raise PlanError(
                f"{address} is the address of a Ray client server: give the address of the cluster, host:port. "
                f"{_NOT_HERE}"
            )
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal():
            raise PlanError(
                f"{address!r} is not the address of a Ray cluster, host:port, such as 10.0.0.1:6379"
            )
        matching = [each for each in here if _is_same(each, host, port)]
        if not matching:
            refusal = find_refusal(address, _LISTEN_SECONDS)
            if refusal is not None:
                raise PlanError(f"no Ray cluster answers at {address} ({refusal})") from refusal
            raise PlanError(f"no node of the Ray cluster at {address} runs on this machine. {_NOT_HERE}")
        return own.get(matching[0], ClusterAddress(matching[0]))
    if len(here) == 1:
        return own.get(here[0], ClusterAddress(here[0]))
    if here:
        scripts = {job.address: f" (started by windrow for {os.path.basename(job.script)})" for job in jobs}
        listed = ", ".join(f"{each}{scripts.get(each, '')}" for each in here)
        raise PlanError(f"{len(here)} Ray clusters run on this machine: give the address of one, of {listed}")
    raise PlanError(
        "no Ray cluster runs on this machine. Runs on Ray are seen from the nodes of its cluster; those on threads "
        "from their own process, with stats() and options(progress=True)"
    )


def _is_same(address: str, host: str, port: str) -> bool:
    """Whether an address of a cluster on this machine is that of a host and port."""
    own_host, _, own_port = address.rpartition(":")
    if own_port != port:
        return False
    with suppress(OSError):
        hosts = {host, socket.gethostbyname(host)}
        return own_host in hosts or any(each.startswith("127.") for each in (*hosts, own_host))
    return own_host == host
