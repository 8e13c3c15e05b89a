"""The program of a worker process: gets batches in shared memory, and returns there what a transform makes of them."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import pyarrow as pa

from windrow.core.errors import TransformError
from windrow.core.shared_batches import SharedBatch, SharedMemory, SharedPool
from windrow.core.system.processes import use_batch_scheduling
from windrow.core.user_functions import ConstructorError
from windrow.pipeline.coordinator.failures import Failure
from windrow.pipeline.executors.processes.lending import LentBatches
from windrow.pipeline.tasks.map_batches import Call, MapBatches
from windrow.pipeline.tasks.row_generator import RowGenerator
from windrow.pipeline.tasks.transforms import as_one_batch, call_function

# memory for results beyond this goes back to the system once it is free
_IDLE_BYTES = 64 * 2**20
_LOOK_SECONDS = 2.0
# what a worker says before its first answer, once it has its function
LOADED = b""


class Request(NamedTuple):
    """A batch for a worker, and which of its results are not mapped any more."""

    rows: SharedBatch
    where: str
    rng: RowGenerator | None
    skips_failed: bool
    returned: tuple[int, ...]


class Answer(NamedTuple):
    """What a worker has made of a batch, and which batches it maps no more."""

    result: SharedBatch | Failure
    # the rows that failed if they are to be left out
    errors: list[tuple[int, Failure]]
    returned: tuple[int, ...]


class _Worker:
    """Answers requests, one at a time."""

    def __init__(self, pickled: bytes, inputs: int, outputs: int, tell_loaded: Callable[[], None]) -> None:
        # a module that is missing here must not end the process without a reason
        self._pickled, self._tell_loaded = pickled, tell_loaded
        self._loaded: tuple[MapBatches, Callable[..., Any]] | None = None
        self._inputs = SharedMemory(inputs)
        self._results = LentBatches(SharedPool(_IDLE_BYTES, outputs))
        # finalizers append, in any thread
        self._returned: deque[int] = deque()

    def answer(self, message: bytes) -> Answer:
        """Run the transform on a batch."""
        try:
            request = _load_request(message)
        except TransformError as error:
            return Answer(Failure.capture(error, _dumps), [], ())
        self._results.take_back(request.returned)
        try:
            table, errors = self._run(request)
            result: SharedBatch | Failure = self._results.lend(_as_batch(table, request.where))
            del table
        except Exception as error:
            result, errors = Failure.capture(error, _dumps), []
        returned = tuple(self._returned.popleft() for _ in range(len(self._returned)))
        return Answer(result, [(row, Failure.capture(error, _dumps)) for row, error in errors], returned)

    def _run(self, request: Request) -> Any:
        if self._loaded is None:
            self._loaded = self._load(request.where)
            self._tell_loaded()
        returned = partial(self._returned.append, request.rows.number)
        for kind in request.rows.schema.types:
            _register(kind)
        rows = pa.Table.from_batches([self._inputs.open_batch(request.rows, returned)])
        stage, fn = self._loaded
        return call_function(stage, fn, Call(rows, request.where, request.rng, request.skips_failed))

    def _load(self, where: str) -> tuple[MapBatches, Callable[..., Any]]:
        try:
            stage: MapBatches = pickle.loads(self._pickled)
        except Exception as error:  # of any module that is imported
            raise ConstructorError(
                f"{where}: its function cannot be loaded in a worker process: {type(error).__name__}: {error}"
            ) from error
        return stage, stage.make_instance()


def _register(kind: pa.DataType) -> None:
    """Make a user's type known to Arrow, which otherwise takes columns of it for their storage."""
    if isinstance(kind, pa.ExtensionType):
        with suppress(pa.ArrowKeyError):  # it is known
            pa.register_extension_type(kind)
    for number in range(kind.num_fields):
        _register(kind.field(number).type)


def _load_request(message: bytes) -> Request:
    try:
        request: Request = pickle.loads(message)
    except Exception as error:  # of any module that is imported
        raise ConstructorError(
            f"a batch cannot be loaded in a worker process: {type(error).__name__}: {error}. Its columns have types "
            "whose classes that process cannot import: put them into a module"
        ) from error
    return request


def _dumps_answer(answer: Answer) -> bytes:
    try:
        return pickle.dumps(answer)
    except Exception:  # a type of a column whose class belongs to a script
        return _dumps(answer)


def _as_batch(table: pa.Table, where: str) -> pa.RecordBatch:
    if table.num_rows:
        return as_one_batch(table, where)
    return pa.RecordBatch.from_arrays(
        [column.combine_chunks() for column in table.columns], schema=table.schema
    )


def _dumps(value: Any) -> bytes:
    # the function may belong to a script, which this process does not run
    import cloudpickle

    return cloudpickle.dumps(value)


def main(parent: int, connection: int, inputs: int, outputs: int) -> None:
    """Answer requests until the other side closes the connection; the others are file descriptors."""
    # Ctrl-C is for the process that started this one, which then closes the connection
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    use_batch_scheduling()
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    try:
        _serve(Connection(connection), inputs, outputs)
        code = 0
    except (EOFError, OSError):
        code = 0
    except SystemExit as error:
        # of a signal handler that the function has set
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
        code = 1
    with suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    # without a farewell: results that are freed would vanish under those who still map them
    os._exit(code)


def _end_with(parent: int) -> None:
    """End this process once the one that started it has ended, even if the function does not return."""
    while os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)
    os._exit(1)


def _serve(requests: Connection, inputs: int, outputs: int) -> None:
    worker = _Worker(requests.recv_bytes(), inputs, outputs, lambda: requests.send_bytes(LOADED))
    # results lie in its memory until the process ends, however it does
    _kept.append(worker)
    while True:
        answer = worker.answer(requests.recv_bytes())
        requests.send_bytes(_dumps_answer(answer))
        del answer


_kept: list[_Worker] = []
