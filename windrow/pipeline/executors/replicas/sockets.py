"""Connections between a host and replicas in other processes of the node, by Unix sockets.

A call is one message and its answer on a connection that the caller has for itself, so that threads that wait do
not keep others from calling. The first connection of a replica tells the host when its process ends.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import tempfile
import threading
import weakref
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from windrow.core.errors import StallError
from windrow.core.shared_batches import SharedBatch, SharedMemory
from windrow.core.system.processes import local_socket, receive_descriptor, send_descriptor
from windrow.pipeline.coordinator.failures import Failure
from windrow.pipeline.coordinator.scheduling.shard_tracker import Key
from windrow.pipeline.executors.base import WindowData
from windrow.pipeline.executors.replicas.client import HostConnection
from windrow.pipeline.executors.replicas.host import ReplicaHost
from windrow.pipeline.executors.replicas.replica_states import Reader
from windrow.pipeline.executors.socket_messages import receive_message, send_message
from windrow.pipeline.statistics.phases import TrainerStats
from windrow.shuffle.order.runs import Run

# a call that waits answers this often that it still does, so that a caller can stop
_WAIT_SECONDS = 1.0
_CONNECT_SECONDS = 30.0
# calls that the host passes on to the coordinator
_ASK_SECONDS = 120.0
_ASKING = ("diagnose", "run_stats", "close", "heartbeat", "release")
# calls of a replica; the first two wait
_WAITING = ("window", "take")
_CALLS = (
    *_WAITING,
    "open_epoch",
    "released",
    "release",
    "acknowledge",
    "heartbeat",
    "diagnose",
    "run_stats",
    "close",
)


@dataclass(frozen=True)
class HostAddress:
    """Where replicas reach a host on its node."""

    path: str
    token: str
    # how long opening an epoch may take
    open_seconds: float


class HostServer:
    """Serves a host's replicas by a socket in a folder ``within`` one that is removed if this process is killed."""

    def __init__(self, host: ReplicaHost, within: str) -> None:
        self._host = host
        self._folder = tempfile.mkdtemp(prefix="w-", dir=within)
        self.address = HostAddress(
            os.path.join(self._folder, "host"), secrets.token_hex(16), 2 * host.fail_seconds + _ASK_SECONDS
        )
        self._socket = local_socket()
        self._socket.bind(self.address.path)
        self._socket.listen(64)
        self._closer = weakref.finalize(self, _remove, self._socket, self._folder)
        self.readers: set[Reader] = set()
        threading.Thread(target=_accept, args=(self._socket, weakref.ref(self)), daemon=True).start()

    def serve(self, connection: socket.socket) -> None:
        """Answer one connection's calls until it ends."""
        reader: Reader | None = None
        leads = False
        with connection, suppress(EOFError, OSError):
            token, found = receive_message(connection)
            if token != self.address.token:
                return
            leads = isinstance(found, int)
            reader = self._host.connect(found) if leads else found
            if leads:
                self.readers.add(reader)
                send_descriptor(connection, self._host.pool.descriptor)
                send_message(connection, reader)
            while True:
                name, arguments, options = receive_message(connection)
                send_message(connection, self._answer(reader, name, arguments, options))
        if leads and reader is not None:
            self.readers.discard(reader)
            self._host.disconnect(reader)

    def _answer(self, reader: Reader, name: str, arguments: Any, options: Any) -> tuple[str, Any]:
        try:
            if name in _WAITING:
                stop = threading.Event()
                timer = threading.Timer(_WAIT_SECONDS, stop.set)
                timer.daemon = True
                timer.start()
                try:
                    found = getattr(self._host, name)(reader, *arguments, stop)
                finally:
                    timer.cancel()
                return ("waits", None) if found is None else ("result", found)
            if name == "run_stats":
                return "result", self._host.run_stats(**options)
            if name in _CALLS:
                return "result", getattr(self._host, name)(reader, *arguments, **options)
            return "error", Failure.capture(ValueError(f"there is no call {name!r}"))
        except BaseException as error:
            return "error", Failure.capture(error)

    def close(self) -> None:
        """Accept no further replica."""
        self._closer()


def _remove(listener: socket.socket, folder: str) -> None:
    # a thread that waits in accept() is woken by the shutdown, not by close()
    with suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    shutil.rmtree(folder, ignore_errors=True)


def _accept(listener: socket.socket, server: weakref.ReferenceType[HostServer]) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        found = server()
        if found is None:
            connection.close()
            return
        threading.Thread(target=found.serve, args=(connection,), daemon=True).start()
        del found


class HostLostError(StallError):
    """The process that reads for replicas has ended."""


class SocketConnection(HostConnection):
    """A replica's connection to a host in another process."""

    def __init__(self, address: HostAddress, replica: int, name: str) -> None:
        self._address, self._name = address, name
        self._idle: deque[socket.socket] = deque()
        self._leading = self._connect(replica)
        descriptor = receive_descriptor(self._leading)
        self._reader: Reader = receive_message(self._leading)
        self._memory = SharedMemory(descriptor)
        self._closed = False
        # releases are told by finalizers, which run in any thread at any time: they only append
        self._released: deque[int] = deque()
        self._closer = weakref.finalize(self, _close_all, self._leading, self._idle, descriptor)

    def _connect(self, who: int | Reader) -> socket.socket:
        connection = local_socket()
        try:
            connection.settimeout(_CONNECT_SECONDS)
            connection.connect(self._address.path)
            send_message(connection, (self._address.token, who))
        except OSError as error:
            connection.close()
            raise self._make_error(error) from error
        return connection

    def _make_error(self, error: Exception) -> HostLostError:
        return HostLostError(
            f"replica {self._name}: the process that reads for all replicas of the shard on this node has ended "
            f"({type(error).__name__}: {error}); look for its end in Ray's logs, and start again from the last state"
        )

    def _call(self, name: str, *arguments: Any, **options: Any) -> Any:
        self._tell_released()
        return self._ask(name, *arguments, **options)[1]

    def _ask(self, name: str, *arguments: Any, **options: Any) -> tuple[str, Any]:
        if self._closed:
            # also where another thread has replaced this connection meanwhile
            raise HostLostError(f"replica {self._name} has been closed")
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._connect(self._reader)
        try:
            connection.settimeout(self._limit_seconds(name))
            send_message(connection, (name, arguments, options))
            kind, value = receive_message(connection)
        except (EOFError, OSError) as error:
            connection.close()
            raise self._make_error(error) from error
        except BaseException:
            # interrupted: its answer would be taken for that of the next call
            connection.close()
            raise
        self._idle.append(connection)
        if self._closed:
            self._close_idle()
        if kind == "error":
            value.rethrow()
        return kind, value

    def _limit_seconds(self, name: str) -> float:
        if name == "open_epoch":
            return self._address.open_seconds
        return _ASK_SECONDS if name in _ASKING else _CONNECT_SECONDS

    def _close_idle(self) -> None:
        while self._idle:
            with suppress(IndexError):
                self._idle.pop().close()

    def _tell_released(self) -> None:
        while self._released:
            with suppress(IndexError):
                self._ask("released", self._released.popleft())

    def _wait(self, name: str, *arguments: Any, stop: threading.Event) -> Any:
        while not stop.is_set():
            self._tell_released()
            kind, value = self._ask(name, *arguments)
            if kind == "result":
                return value
        return None

    def window(self, epoch: int, window: int, stop: threading.Event) -> WindowData | None:
        return self._wait("window", epoch, window, stop=stop)

    def open_run(self, key: Key, run: Run, stop: threading.Event) -> pa.RecordBatch | None:
        shared: SharedBatch | None = self._wait("take", key, run, stop=stop)
        if shared is None:
            return None
        # a bound method: what is mapped keeps this connection open, which tells the host that it still is
        return self._memory.open_batch(shared, partial(self._released_run, shared.number))

    def _released_run(self, number: int) -> None:
        self._released.append(number)

    def close(self, stats: TrainerStats | None) -> None:
        try:
            with suppress(StallError):
                super().close(stats)
        finally:
            self._closed = True
            self._close_idle()


def _close_all(leading: socket.socket, idle: deque[socket.socket], descriptor: int) -> None:
    for connection in (leading, *idle):
        connection.close()
    os.close(descriptor)
