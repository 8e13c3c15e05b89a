"""The supervisor process: starts a node's part of a job's Ray cluster, owns the runs, and outlives every rank.

The first rank of a node starts it in a session of its own, so that signals to the ranks do not end it. It
serves as long as a process is connected to it (`lifeline.py`). Then it ends the Ray processes and removes
their files. If it is killed itself, the operating system ends the Ray processes with it.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray import cloudpickle

from windrow.core.machine import available_cores
from windrow.core.system.files import open_file, remove_leased_folder
from windrow.core.system.locks import try_lock
from windrow.core.system.processes import add_cores_of, end_signals, find_processes, is_own, kill_processes
from windrow.pipeline.coordinator.failures import Failure
from windrow.pipeline.executors.ray.cluster import NAMESPACE, find_refusal, node_ip, resolve_hints
from windrow.pipeline.executors.ray.executor import RayExecutor, ray_settings
from windrow.pipeline.executors.ray.job_file import DIRECTORY_PREFIX, JobFile
from windrow.pipeline.executors.ray.lifeline import Channel, accept_channel, open_channel

# Nothing connects if the rank that started this process ends before it has read the ready message.
_FIRST_RANK_SECONDS = 120.0
_JOIN_SECONDS = 120.0
_CONNECT_SECONDS = 20.0
_END_SECONDS = 10.0
# A node whose link is down for half a minute is not lost; one whose ranks die is the launcher's business.
# A transfer over a slow link is not retried while it runs, which would send the object twice.
_PATIENT = {"health_check_failure_threshold": 12, "object_manager_pull_timeout_ms": 60_000}
_STARTED = "Ray runtime started"


@dataclass
class _Config:
    """What the rank that starts a supervisor tells it."""

    # the IP address of this node in the cluster
    ip: str
    # authenticates connections to the supervisor
    token: str
    # a file descriptor for the ready message
    ready: int
    # the process id of the launcher
    launcher: int
    # unique; the environment of all processes of this supervisor contains it
    mark: str
    # the Ray cluster to join or to use; None: start one
    address: str | None = None
    # the head node's supervisor; None on the head node, and where a running cluster is used
    head: tuple[str, int] | None = None
    # whether this node becomes a node of the cluster
    adds_node: bool = True
    # Ray's token, which the environment has too; empty: the user's
    auth_token: str = field(default="", repr=False)


def main(config: Mapping[str, Any]) -> None:
    """Run a supervisor until no process is connected to it."""
    parsed = _Config(**config)
    supervisor = _Supervisor(parsed)
    for number in end_signals():
        signal.signal(number, lambda *_: supervisor.stop())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        try:
            ready = supervisor.start()
        except BaseException as error:
            ready = {"error": f"{type(error).__name__}: {error}"}
        try:
            with os.fdopen(parsed.ready, "w", encoding="utf-8") as pipe:
                json.dump(ready, pipe)
        except OSError:
            # the process that waits for this one has ended, as after Ctrl-C
            return
        if "error" not in ready:
            supervisor.serve()
    finally:
        supervisor.end()


class _Supervisor:
    """A node's part of the cluster, and the processes that are connected."""

    def __init__(self, config: _Config) -> None:
        self._config = config
        self._changed = threading.Condition()
        self._peers = 0
        self._connected = self._stopped = False
        self._directory: Path | None = None
        self._node: subprocess.Popen[str] | None = None
        self._starting = threading.Lock()
        # keeps the coordinators alive
        self._sessions: dict[str, Any] = {}
        self._listener: socket.socket | None = None
        self._locks: list[int] = []

    def start(self) -> dict[str, Any]:
        """Start or join the cluster, and listen; returns what ranks need to connect."""
        config = self._config
        if config.adds_node:
            add_cores_of(config.launcher)
            _remove_stale_directories()
            self._directory = Path(tempfile.mkdtemp(prefix=DIRECTORY_PREFIX))
            self._locks.append(_lock(self._directory))
        if config.address is None:
            # "local" never connects to a cluster that is already running
            ray.init(
                address="local",
                namespace=NAMESPACE,
                include_dashboard=False,
                num_cpus=available_cores(),
                logging_level=logging.ERROR,
                _node_ip_address=node_ip(config.ip),
                _temp_dir=str(self._directory),
                _system_config={**ray_settings(), **_PATIENT},
            )
        elif config.adds_node:
            self._join(config.address)
        else:
            # Ray would try for minutes; an address without a port is one that Ray looks for itself
            refusal = find_refusal(config.address, _CONNECT_SECONDS)
            if isinstance(refusal, OSError):
                text = f"nothing answers at {config.address} ({refusal}); check RAY_ADDRESS"
                raise ConnectionError(text) from refusal
            ray.init(address=config.address, namespace=NAMESPACE, logging_level=logging.ERROR)
        if config.head is not None:
            upstream = open_channel(*config.head, config.token)
            threading.Thread(target=self._watch_head, args=(upstream,), daemon=True).start()
        listener = socket.create_server((config.ip, 0))
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        address = str(config.address if config.head else ray.get_runtime_context().gcs_address)
        if self._directory is not None:
            # for other programs of this user, such as `windrow status`
            JobFile(address, config.ip, config.auth_token, sys.argv[0]).write(self._directory)
        return {"address": address, "host": config.ip, "port": listener.getsockname()[1]}

    def _join(self, address: str) -> None:
        """Run a raylet of another node's cluster."""
        command = [sys.executable, "-c", "from ray.scripts.scripts import main; main()", "start"]
        command += [f"--address={address}", f"--node-ip-address={self._config.ip}", "--block"]
        command += [f"--num-cpus={available_cores()}", f"--temp-dir={self._directory}"]
        node = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._node = node
        assert node.stdout is not None
        timer = threading.Timer(_JOIN_SECONDS, node.kill)
        timer.start()
        shown = []
        for line in node.stdout:
            shown.append(line)
            if _STARTED in line:
                threading.Thread(target=node.stdout.read, daemon=True).start()
                break
        else:
            raise RuntimeError(f"this node could not join the Ray cluster at {address}:\n{''.join(shown)}")
        timer.cancel()

    def serve(self) -> None:
        """Wait until the last process has disconnected."""
        deadline = time.monotonic() + _FIRST_RANK_SECONDS
        with self._changed:
            while not self._stopped and (self._peers or not self._connected):
                if not self._connected and time.monotonic() > deadline:
                    return
                self._changed.wait(1.0)

    def stop(self) -> None:
        """End `serve`; called by signal handlers, which must not take a lock."""
        self._stopped = True

    def end(self) -> None:
        """End the Ray processes of this node and remove their files."""
        if self._listener is not None:
            self._listener.close()
        if self._node is None:
            # ends the coordinators too, which this process owns
            with suppress(Exception):
                ray.shutdown()
        else:
            self._node.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._node.wait(_END_SECONDS)
            self._node.kill()
        if self._config.adds_node:
            _end_processes(self._config.mark)
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    # --- connections

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve_peer, args=(connection,), daemon=True).start()

    def _serve_peer(self, connection: socket.socket) -> None:
        channel = accept_channel(connection, self._config.token)
        if channel is None:
            return
        self._count(1)
        try:
            while True:
                channel.send(self._answer(*channel.receive()))
        except (EOFError, OSError):
            pass
        finally:
            channel.close()
            self._count(-1)

    def _count(self, change: int) -> None:
        with self._changed:
            self._peers += change
            self._connected = True
            self._changed.notify_all()

    def _watch_head(self, upstream: Channel) -> None:
        with suppress(EOFError, OSError):
            upstream.receive()
        self._stopped = True

    # --- requests of ranks

    def _answer(
        self, name: str, pickled: bytes, ips: Sequence[Sequence[str]]
    ) -> Failure | Sequence[Sequence[str | None]]:
        """Start the run ``name`` of a pickled program, once; ``ips`` are the nodes of each shard. Returns their ids."""
        try:
            program = cloudpickle.loads(pickled)
            nodes = {one["NodeManagerAddress"]: one["NodeID"] for one in ray.nodes() if one["Alive"]}
            hints = [[nodes.get(ip) for ip in of_shard] for of_shard in ips]
            with self._starting:
                if name not in self._sessions:
                    self._sessions[name] = RayExecutor().session(program, hints, name=name)
            return resolve_hints(hints, program.shards)
        except BaseException as error:
            return Failure.capture(error, cloudpickle.dumps)


def _lock(directory: Path) -> int:
    """Lock a directory for as long as this process lives; raises an OSError if another process has locked it."""
    descriptor = open_file(directory / "lock", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        if not try_lock(descriptor, exclusive=True):
            raise BlockingIOError(f"{directory} is locked by another process")
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _remove_stale_directories() -> None:
    """Remove what killed supervisors of this user have left behind."""
    for directory in Path(tempfile.gettempdir()).glob(f"{DIRECTORY_PREFIX}*"):
        with suppress(OSError):
            if is_own(directory) and (directory / "lock").exists():
                remove_leased_folder(directory, _lock(directory))


def _end_processes(mark: str) -> None:
    """Wait for this node's Ray processes, which have ``mark`` in their environment, and kill what remains."""
    deadline = time.monotonic() + _END_SECONDS
    while left := find_processes(mark):
        if time.monotonic() > deadline:
            kill_processes(left)
            return
        time.sleep(0.1)
