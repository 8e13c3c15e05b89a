"""The worker processes of a transform on this machine: each has a thread here that hands it batches."""

from __future__ import annotations

import logging
import os
import pickle
import queue
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import pyarrow as pa

from windrow.core.errors import PlanError, TransformError
from windrow.core.shared_batches import SharedMemory, SharedPool, make_shared_file
from windrow.core.user_functions import ConstructorError
from windrow.pipeline.coordinator.failures import Failure
from windrow.pipeline.executors.processes.lending import LentBatches
from windrow.pipeline.executors.processes.worker import LOADED, Answer, Request
from windrow.pipeline.tasks.map_batches import Call, MapBatches, Result
from windrow.pipeline.tasks.transforms import join_chunks

logger = logging.getLogger(__name__)

_IDLE_SECONDS = 30.0
# a batch that no process survives must end
_LIVES = 4
_END_SECONDS = 5.0
# how often a thread that waits for a process looks whether it lives
_LOOK_SECONDS = 1.0
# memory for batches beyond this goes back to the system once it is free
_IDLE_BYTES = 64 * 2**20
# each is one of many, so libraries use one thread there, as in workers of PyTorch and Ray
_PROGRAM = (
    "import os, sys; os.environ.setdefault('OMP_NUM_THREADS', '1'); sys.path[:] = {path!r}; "
    "from windrow.pipeline.executors.processes.worker import main; main(*map(int, sys.argv[1:]))"
)


def _dumps(value: Any) -> bytes:
    # functions, and the classes of columns' types, may belong to a script, which workers do not run
    import cloudpickle

    # in a process that multiprocessing has spawned, the script has another name, which workers do not know either
    script = sys.modules.get("__mp_main__")
    if script is None or script.__name__ != "__mp_main__":
        dumped: bytes = cloudpickle.dumps(value)
        return dumped
    with _by_value:
        is_new = script.__name__ not in cloudpickle.list_registry_pickle_by_value()
        if is_new:
            cloudpickle.register_pickle_by_value(script)
        try:
            dumped = cloudpickle.dumps(value)
        finally:
            if is_new:
                cloudpickle.unregister_pickle_by_value(script)
    return dumped


# what cloudpickle pickles by value is registered for all threads
_by_value = threading.Lock()


def _pickle_stage(stage: MapBatches) -> bytes:
    try:
        pickled = _dumps(replace(stage, workers=None))
    except Exception as error:  # whatever a user's __reduce__ raises
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        raise PlanError(
            f"{stage.name} cannot be sent to worker processes, because it cannot be pickled: {text}. Create what "
            "cannot be pickled inside the function or class, or leave out compute= and the resources"
        ) from error
    return pickled


@dataclass
class _Work:
    """A call that waits for a worker, or is with one."""

    call: Call
    future: Future[Result] = field(default_factory=Future)


class ProcessWorkers:
    """The pool of one transform; see `RemoteWorkers`.

    A batch goes to the worker that became free last, so that those which are not needed end.
    """

    def __init__(self, stage: MapBatches, sizes: tuple[int, int]) -> None:
        self.name = stage.name
        self._least, self.most = sizes
        self.pickled = _pickle_stage(stage)
        self.inputs = SharedPool(_IDLE_BYTES)
        self._lock = threading.Lock()
        self._waiting: deque[_Work] = deque()
        self._idle: list[_Worker] = []
        self._workers: set[_Worker] = set()
        self._owner = os.getpid()
        self.closed = threading.Event()

    @property
    def calls_together(self) -> int:
        """See `RemoteWorkers`; a batch is lent to a process of this machine, which costs little."""
        return 1

    def start(self, calls: Sequence[Call]) -> list[Callable[[], Result]]:
        """See `RemoteWorkers`."""
        return [self._start(call) for call in calls]

    def _start(self, call: Call) -> Callable[[], Result]:
        work = _Work(call)
        with self._lock:
            if self.closed.is_set():
                work.future.cancel()
            elif self._idle:
                self._idle.pop().inbox.put(work)
            else:
                self._waiting.append(work)
                if len(self._workers) < self.most:
                    worker = _Worker(self)
                    self._workers.add(worker)
                    worker.thread.start()
        # waits as long as the function takes: a consumer that waits too long is told by `describe` what it waits for
        return work.future.result

    def next_work(self, worker: _Worker) -> _Work | None:
        """The next batch for a worker, which waits for one; None: it shall end."""
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()
            if self.closed.is_set():
                return None
            self._idle.append(worker)
        while True:
            with suppress(queue.Empty):
                return worker.inbox.get(timeout=_IDLE_SECONDS)
            with self._lock:
                # otherwise it has just been given a batch
                if worker in self._idle and len(self._workers) > self._least:
                    self._idle.remove(worker)
                    self._workers.discard(worker)
                    return None

    def describe(self, seconds: float) -> str:
        """Which of its processes have worked on a batch for so many seconds; empty for none."""
        now = time.monotonic()
        with self._lock:
            busy = [(now - worker.since, worker.pid) for worker in self._workers if worker.since]
        slow = sorted((each for each in busy if each[0] >= seconds), reverse=True)
        if not slow:
            return ""
        return f"{self.name} has worked on a batch for {slow[0][0]:,.0f} s in process {slow[0][1]}"

    def close(self) -> None:
        """End all processes, and cancel the calls that wait."""
        if os.getpid() != self._owner:
            # this process was forked: the workers are its parent's
            return
        with self._lock:
            self.closed.set()
            waiting, self._waiting = list(self._waiting), deque()
            workers, self._idle = list(self._workers), []
            self._workers.clear()
        for work in waiting:
            work.future.cancel()
        for worker in workers:
            worker.end()
        for worker in workers:
            if worker.thread is not threading.current_thread():
                # it kills a process that does not end
                worker.thread.join(_END_SECONDS + _LOOK_SECONDS)


class _Worker:
    """One worker: a thread here, and its process, which is started again when it dies."""

    def __init__(self, pool: ProcessWorkers) -> None:
        self._pool = pool
        self.inbox: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        # when the batch was sent that its process works on; 0: it has none
        self.since = 0.0
        self._process: _Process | None = None
        self.thread = threading.Thread(target=self._run, name="windrow-process", daemon=True)

    @property
    def pid(self) -> int:
        """The id of its process; 0 without one."""
        process = self._process
        return 0 if process is None else process.pid

    def end(self) -> None:
        """Wake the thread, and let the process end."""
        self.inbox.put(None)
        process = self._process
        if process is not None:
            process.hang_up()

    def _run(self) -> None:
        try:
            while (work := self._pool.next_work(self)) is not None:
                self._serve(work)
                del work
        finally:
            process, self._process = self._process, None
            if process is not None:
                process.end()

    def _serve(self, work: _Work) -> None:
        if not work.future.set_running_or_notify_cancel():
            return
        self.since = time.monotonic()
        try:
            result = self._answer(work.call)
        except BaseException as error:
            work.future.set_exception(error)
        else:
            work.future.set_result(result)
        finally:
            self.since = 0.0

    def _answer(self, call: Call) -> Result:
        codes: list[int | None] = []
        has_loaded = False
        while len(codes) < _LIVES:
            process = self._process
            if process is None:
                process = self._process = _Process(self._pool)
            if self._pool.closed.is_set():
                # perhaps before there was a process that could have been told
                raise CancelledError
            try:
                return process.run(call)
            except _ProcessEndedError as error:
                self._process = None
                codes.append(process.end())
                has_loaded |= process.has_loaded
                if self._pool.closed.is_set():
                    raise CancelledError from error
                logger.warning("a process of %s has ended (exit code %s)", self._pool.name, codes[-1])
        kind, work = (
            (TransformError, "worked on this batch")
            if has_loaded
            else (ConstructorError, "loaded its function or made an object of its class")
        )
        raise kind(
            f"{call.where}: the worker process died {_LIVES} times while it {work} (exit codes "
            f"{', '.join(map(str, codes))}), from a crash in native code, for want of memory (-9), or because the "
            "function ends it"
        )


class _ProcessEndedError(Exception):
    """A process does not answer."""


class _Process:
    """A process with a connection to it, the results that it lends, and the batches that it is lent."""

    def __init__(self, pool: ProcessWorkers) -> None:
        self._lent = LentBatches(pool.inputs)
        # by number, results that nothing here maps any more; finalizers append, in any thread
        self._returned: deque[int] = deque()
        ours, theirs = socket.socketpair()
        outputs = make_shared_file()
        self._results = SharedMemory(outputs)
        # closed once neither this object nor the opened results need it
        self._outputs = outputs
        descriptors = (theirs.fileno(), pool.inputs.descriptor, outputs)
        try:
            self._popen = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    _PROGRAM.format(path=sys.path),
                    *map(str, (os.getpid(), *descriptors)),
                ],
                stdin=subprocess.DEVNULL,
                pass_fds=descriptors,
            )
        except OSError as error:
            ours.close()
            os.close(outputs)
            raise ConstructorError(f"{pool.name}: no worker process can start: {error}") from error
        finally:
            theirs.close()
        self.pid = self._popen.pid
        # whether it has its function
        self.has_loaded = False
        self._socket = ours
        self._connection = Connection(os.dup(ours.fileno()))
        with suppress(OSError):
            # a process that has ended already is noticed with the first batch
            self._connection.send_bytes(pool.pickled)

    def run(self, call: Call) -> Result:
        """Have a batch made; raises `_ProcessEndedError` if the process has ended."""
        batch = join_chunks(call.rows)
        shared = self._lent.lend(batch)
        returned = tuple(self._returned.popleft() for _ in range(len(self._returned)))
        request = Request(shared, call.where, call.rng, call.skips_failed, returned)
        message = _dumps(request)
        try:
            self._connection.send_bytes(message)
            message = self._receive()
            if message == LOADED:
                self.has_loaded = True
                message = self._receive()
        except (EOFError, OSError) as error:
            raise _ProcessEndedError from error
        answer: Answer = pickle.loads(message)
        self._lent.take_back(answer.returned)
        if isinstance(answer.result, Failure):
            answer.result.rethrow()
        freed = partial(self._returned.append, answer.result.number)
        table = pa.Table.from_batches([self._results.open_batch(answer.result, freed)])
        return table, [(row, _error_of(failure)) for row, failure in answer.errors]

    def _receive(self) -> bytes:
        while not self._connection.poll(_LOOK_SECONDS):
            # processes that its function has started may keep the connection open
            if self._popen.poll() is not None and not self._connection.poll():
                raise _ProcessEndedError
        return self._connection.recv_bytes()

    def hang_up(self) -> None:
        """Close the connection under a thread that may wait for the process, which then ends."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def end(self) -> int | None:
        """End the process, if it has not ended; returns its exit code."""
        self.hang_up()
        self._socket.close()
        self._connection.close()
        os.close(self._outputs)
        try:
            return self._popen.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            # its function does not return
            self._popen.kill()
            return self._popen.wait()


def _error_of(failure: Failure) -> TransformError:
    try:
        failure.rethrow()
    except TransformError as error:
        return error
