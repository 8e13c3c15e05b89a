"""Starts a supervisor process from a rank, and waits until it is ready."""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import select
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

from windrow.core.errors import PlanError, StallError
from windrow.core.system.memory import check_shares_memory
from windrow.pipeline.executors.ray.cluster import ClusterAddress
from windrow.pipeline.executors.ray.lifeline import Channel, open_channel

logger = logging.getLogger(__name__)

_READY_SECONDS = 240.0
# A node gives up after 30 s, which is short where all ranks of a machine import torch at the same time.
_ATTEMPTS = 3
_IS_SLOW = re.compile(
    "timed out during startup|could not join the Ray cluster|Deadline Exceeded|Failed to get node info"
)
_END_SECONDS = 60.0
_RUN = (
    "import json, sys; config = json.loads(sys.stdin.readline()); sys.path[:] = config.pop('path'); "
    "sys.argv[0] = config.pop('script'); "
    "from windrow.pipeline.executors.ray.supervisor import main; main(config)"
)
# A launcher's variables describe one rank; the supervisor and Ray's workers serve all of them.
_LAUNCHER_VARIABLES = (
    "RANK",
    "LOCAL_RANK",
    "GROUP_RANK",
    "ROLE_RANK",
    "OMPI_COMM_WORLD_RANK",
    "SLURM_PROCID",
)


@dataclass(frozen=True)
class SupervisorAddress:
    """What a process needs to connect to a supervisor, and to Ray on the supervisor's node."""

    # the supervisor, and the token that it asks for
    host: str
    port: int
    token: str
    # as in `ClusterAddress`
    address: str
    ip: str
    auth_token: str
    # whether the supervisor started this node's Ray processes
    adds_node: bool

    @property
    def cluster(self) -> ClusterAddress:
        """The Ray cluster, for processes of the supervisor's node."""
        return ClusterAddress(self.address, self.ip if self.adds_node else "", self.auth_token)


def start_supervisor(
    ip: str, *, head: SupervisorAddress | None = None, address: str | None = None
) -> SupervisorAddress:
    """Start a supervisor on this node, which ends when no process is connected to it any more.

    It starts a Ray cluster, or adds this node to the cluster of another supervisor (``head``), or uses a
    cluster that is running at ``address``. Raises a `PlanError` if it cannot.
    """
    check_shares_memory(
        "starting Ray for the ranks of a launcher is",
        'let each rank read for itself, with options(executor="threads")',
    )
    token = head.token if head else secrets.token_hex(16)
    auth_token = head.auth_token if head else "" if address else secrets.token_hex(32)
    adds_node = address is None
    config = {
        "path": sys.path,
        "script": os.path.realpath(sys.argv[0]) if sys.argv else "",
        "ip": ip,
        "token": token,
        "launcher": os.getppid(),
        "address": head.address if head else address,
        "head": (head.host, head.port) if head else None,
        "adds_node": adds_node,
        "auth_token": auth_token,
    }
    for attempt in range(1, _ATTEMPTS + 1):
        ready = _start(config, auth_token, is_head=head is None and address is None)
        if attempt == _ATTEMPTS or not _IS_SLOW.search(ready.get("error", "")):
            break
        logger.warning(
            "Ray did not start in time on %s, try %d of %d: starting it again", ip, attempt, _ATTEMPTS
        )
    if "error" in ready:
        what = f"use the Ray cluster at {address}" if address else "start Ray for all ranks"
        raise PlanError(
            f"cannot {what} on {ip}: {ready['error'].strip().rstrip('.')}. See the output above. "
            'Each rank can read for itself instead, with options(executor="threads")'
        )
    return SupervisorAddress(**ready, token=token, ip=ip, auth_token=auth_token, adds_node=adds_node)


def _start(config: dict[str, Any], auth_token: str, *, is_head: bool) -> dict[str, Any]:
    """Start a supervisor once; returns what it tells when it is ready, or its error, when it has ended."""
    read_end, write_end = os.pipe()
    mark = f"WINDROW_SUPERVISOR={secrets.token_hex(16)}"
    with os.fdopen(read_end, encoding="utf-8") as pipe:
        try:
            process = subprocess.Popen(
                [sys.executable, "-c", _RUN],
                stdin=subprocess.PIPE,
                pass_fds=(write_end,),
                env=_environment(mark, auth_token, is_head=is_head),
                start_new_session=True,
            )
        finally:
            os.close(write_end)
        assert process.stdin is not None
        process.stdin.write(json.dumps({**config, "ready": write_end, "mark": mark}).encode() + b"\n")
        process.stdin.close()
        ready = _read_ready(pipe, process)
    if "error" in ready:
        # with its Ray processes, of which the next try finds none
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    # it outlives this process, which would warn about it
    process.returncode = 0
    return ready


def connect_to_supervisor(supervisor: SupervisorAddress) -> Channel:
    """Connect this process, which keeps the supervisor running; raises a `StallError` if it is gone."""
    try:
        return open_channel(supervisor.host, supervisor.port, supervisor.token)
    except OSError as error:
        raise StallError(
            f"this process cannot reach the supervisor of the job at {supervisor.host}:{supervisor.port} "
            f"({error}): it has ended, or a firewall separates the nodes"
        ) from error


def _environment(mark: str, auth_token: str, *, is_head: bool) -> dict[str, str]:
    inherited = os.environ
    environment = {name: value for name, value in inherited.items() if name not in _LAUNCHER_VARIABLES}
    name, _, value = mark.partition("=")
    environment[name] = value
    if auth_token:
        environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": auth_token}
    if is_head:
        environment.pop("RAY_ADDRESS", None)
    return environment


def _read_ready(pipe: Any, process: subprocess.Popen[bytes]) -> dict[str, Any]:
    deadline = time.monotonic() + _READY_SECONDS
    while not select.select([pipe], [], [], 1.0)[0]:
        if time.monotonic() > deadline:
            process.kill()
            return {"error": f"no answer within {_READY_SECONDS:.0f} s"}
    text = pipe.read()
    if not text:
        return {"error": f"the supervisor ended with exit code {process.wait()}"}
    return json.loads(text)
