"""A map task as a value: its blocks and where their rows go; and what it reports of rows, corrupt blocks and time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.errors import SourceError
from windrow.core.machine import available_cores
from windrow.core.phase_clock import PhaseClock, timed
from windrow.core.source import BlockAddress, BlockPart, CorruptBlockError
from windrow.core.system.processes import major_faults
from windrow.pipeline.statistics.phases import (
    DECODE,
    SHUFFLE,
    STORAGE,
    TASK_PHASES,
    TRANSFORM,
    TRANSFORM_PREFIX,
    TaskProfile,
)
from windrow.pipeline.tasks.cache.disk_cache import CacheReport
from windrow.pipeline.tasks.list_limit import ListLimit
from windrow.shuffle.kernels.pieces import Pieces
from windrow.shuffle.order.round_runs import RoundRuns
from windrow.shuffle.order.runs import WindowRuns
from windrow.shuffle.order.sequence_places import SequencePlaces
from windrow.shuffle.order.step_runs import StepRuns
from windrow.shuffle.order.window_order import WindowOrder, cut_documents

T = TypeVar("T")
# a major page fault waits at most about this long for a local disk
_FAULT_SECONDS = 0.02
# With packing, tokens that are placed at a time, unless a document has more.
PLACED_TOKENS = 2**20


@dataclass(frozen=True, order=True)
class Work:
    """One task: a part of a window, at one stage.

    ``attempt`` distinguishes results of this attempt at the window from late results of an
    earlier one, after the window has been dropped and restarted.
    """

    epoch: int
    window: int
    part: int
    stage: int
    attempt: int


@dataclass(frozen=True)
class Corruption:
    """A block that a task could not decode: its number in stored order, and the error, which names the block."""

    block: int
    error: str


def find_corruption(read: Callable[[], T], block: int) -> T | Corruption:
    """Read a block, and retry once if it is corrupt: the first transfer may have corrupted it."""
    try:
        return read()
    except CorruptBlockError:
        pass
    try:
        return read()
    except CorruptBlockError as error:
        return Corruption(block, str(error))


def make_late_corruption_error(error: object) -> SourceError:
    """Make the error for a block found corrupt after its rows were assigned positions."""
    return SourceError(
        f"{error}. It can no longer be skipped: it was read before, and rows of its window already "
        "have positions. Restore the file, and resume from a saved state"
    )


@contextmanager
def late_corruption() -> Iterator[None]:
    """Turn the error of a corrupt block into one that explains why ``on_error="skip"`` does not skip it."""
    try:
        yield
    except CorruptBlockError as error:
        raise make_late_corruption_error(error) from error.__cause__


_next_part = timed(DECODE)(next)


class TaskMeter:
    """The clock of one task, and its profile."""

    def __init__(self) -> None:
        self.clock = PhaseClock(counts_cpu=True)
        self._faults = major_faults()

    def profile(self) -> TaskProfile:
        """What the task has spent its time on; call it when the clock has stopped."""
        clock = self.clock
        # a default dictionary: phases that did not occur are 0
        seconds, functions = clock.seconds, dict[str, float]()
        phases = {name: seconds[name] for name in TASK_PHASES}
        if len(seconds) > len(phases):
            functions = {
                name.removeprefix(TRANSFORM_PREFIX): spent
                for name, spent in seconds.items()
                if name.startswith(TRANSFORM_PREFIX)
            }
            phases[TRANSFORM] += sum(functions.values())
        # reads in other threads, for which decoding waited; and pages of local files that came from a disk
        off_core = max(0.0, phases[DECODE] + phases[SHUFFLE] - clock.cpu_seconds)
        waited = clock.elsewhere.get(STORAGE, 0.0) + _FAULT_SECONDS * (major_faults() - self._faults)
        from_storage = min(off_core, waited, phases[DECODE])
        phases[DECODE] -= from_storage
        phases[STORAGE] += from_storage
        return TaskProfile(
            phases,
            clock.cpu_seconds,
            functions,
            clock.requests,
            clock.requested_bytes,
            clock.retries,
            _cores(),
        )


def timed_parts(parts: Iterable[BlockPart]) -> Iterator[BlockPart]:
    """Yield the parts of a block; what is done to get each one counts as decoding."""
    iterator = iter(parts)
    while True:
        # in a list, so that this frame does not hold a part while the next one is decoded
        found: list[Any] = [_next_part(iterator, None)]
        if found[0] is None:
            return
        yield found.pop()


@lru_cache(maxsize=1)
def _cores() -> int:
    return available_cores()


@dataclass(frozen=True)
class Shortfall:
    """How far a task got before its output exceeded the limit."""

    # the share of its rows that the task had transformed, 0 to 1, and the output rows and bytes of that share
    share: float
    rows: int
    size_bytes: int
    # a lower bound of the task's whole output: the finished blocks, and the estimate for the current one
    min_bytes: int


@dataclass(frozen=True)
class Documents:
    """The documents of a block, whose tokens are its rows."""

    # (documents,) the epoch row of the first token of each, and its number of tokens
    starts: NDArray[np.int64]
    lengths: NDArray[np.int32]
    # (documents,) tokens of padding behind each; None: no sequence is padded
    padding: NDArray[np.int32] | None = None
    # with `Balance`, (pieces,) the number in the window of the first token of each piece, cut as `cut_documents` does
    numbers: NDArray[np.uint32] | NDArray[np.int64] | None = None


@dataclass(frozen=True)
class Ordering:
    """Where the rows of a task go."""

    order: WindowOrder
    # for each block, the number of its first row among the stored rows of the window
    offsets: tuple[int, ...]
    # the window's runs, one layout for each destination
    layouts: tuple[WindowRuns, ...] | tuple[RoundRuns, ...] | tuple[StepRuns, ...]
    # with packing, the documents of each block, which are ordered instead of its rows
    documents: tuple[Documents, ...] | None = None
    # (rows,) of each block, where `order` does not tell where its rows go: with a sort their epoch rows, with `Balance`
    # their numbers in the window
    given_rows: tuple[NDArray[np.int64] | NDArray[np.uint32], ...] | None = None
    # of a mixture with packing, whose documents are cut into sequences that come one by one
    sequences: SequencePlaces | None = None
    # where longer lists are cut before rows are placed
    list_limit: ListLimit | None = None

    @property
    def is_stored_order(self) -> bool:
        """Whether rows keep the order of their blocks."""
        return self.order.is_stored and self.documents is None and self.given_rows is None

    def place(self, at: int, start: int, part: BlockPart) -> NDArray[Any]:
        """(rows,) the epoch rows of a part's rows, with `Balance` their numbers in the window.

        ``start`` is the part's first row in block ``at`` of the task.
        """
        if self.given_rows is not None:
            return self.given_rows[at][start : start + part.num_rows]
        first = self.offsets[at] + start
        return self.order.epoch_rows(first, first + part.num_rows)

    def place_documents(
        self, at: int, seq_len: int, tokens: pa.Table
    ) -> Iterator[tuple[pa.Table, Pieces, NDArray[Any]]]:
        """Yield pieces of the documents of block ``at``, cut at the borders of sequences, and their first epoch rows.

        With `Balance`, the numbers of these rows in the window. They are pieces of a slice of the block's tokens, which
        comes with them: some documents at a time, whose tokens stay in the CPU cache until all of them are moved.
        """
        assert self.documents is not None
        documents = self.documents[at]
        stops = np.cumsum(documents.lengths, dtype=np.int64)
        first = token = piece = 0
        while first < len(stops):
            # at least one document
            last = max(first + 1, int(np.searchsorted(stops, token + PLACED_TOKENS, side="right")))
            starts, lengths = documents.starts[first:last], documents.lengths[first:last]
            rows: NDArray[Any]
            if self.sequences is not None:
                rows, counts = self.sequences.cut(starts, lengths)
            else:
                rows, counts, _ = cut_documents(starts, lengths, seq_len)
            if documents.numbers is not None:
                rows = documents.numbers[piece : piece + len(rows)]
            stop = int(stops[last - 1])
            if len(rows):
                yield tokens.slice(token, stop - token), Pieces(np.cumsum(counts) - counts, counts), rows
            first, token, piece = last, stop, piece + len(rows)

    def place_padding(self, at: int) -> tuple[Pieces, NDArray[Any]] | None:
        """Pieces of padding behind documents of block ``at``, from row 0 of a table of it on, and their epoch rows.

        With `Balance`, the numbers in the window of these rows.
        """
        assert self.documents is not None
        documents = self.documents[at]
        if documents.padding is None or not documents.padding.any():
            return None
        held = documents.padding > 0
        counts = documents.padding[held].astype(np.int64)
        rows: NDArray[Any] = (documents.starts + documents.lengths)[held]
        if documents.numbers is not None:
            # a document that is placed whole is one piece, and none if it is empty
            piece = np.cumsum(documents.lengths > 0)[held] - 1
            rows = documents.numbers[piece] + documents.lengths[held].astype(documents.numbers.dtype)
        return Pieces(np.zeros_like(counts), counts), rows


@dataclass(frozen=True)
class Task:
    """One task."""

    # the scheduler's identifier of the task
    work: Work
    # the numbers of its blocks in stored order
    blocks: tuple[int, ...]
    addresses: tuple[BlockAddress, ...]
    # the rows that each block must have; None where unknown
    rows: tuple[int | None, ...]
    # whether the task reads the blocks; otherwise an earlier task did, and their tables are its input
    reads: bool
    # where rows go; None for a task that only reads
    ordering: Ordering | None
    # Indices into ``blocks`` of those whose cached tables are passed to the task, of those whose tables it
    # returns for the memory cache, and of those known to be corrupt, which count as having no rows.
    found: tuple[int, ...] = ()
    keeps: tuple[int, ...] = ()
    skips: tuple[int, ...] = ()
    # indices behind the blocks that are read as one, if their rows lie one behind another; empty: none are
    joins: tuple[int, ...] = ()
    # the limit of its output; a task that exceeds it returns no output
    max_bytes: int | None = None
    # whether to transform a few rows of each block first, to estimate the output of the block
    samples: bool = False
    # the column by which rows are measured for `Balance`; None: they are not
    measure: str | None = None


class TaskRunner(Protocol):
    """Runs a driver's tasks."""

    @property
    def destinations(self) -> tuple[tuple[int, ...], ...]:
        """The shards, grouped by the destination of their map outputs."""

    def run(self, task: Task, tables: Any, *cached: Any) -> None:
        """Start a task, which ends with a call of the driver's ``task_done`` or ``task_failed``.

        ``tables`` is the handle of the read task's output, for a task that only places rows.
        ``cached`` holds the handles of the cached blocks that ``task.found`` lists.
        """


@dataclass(frozen=True)
class TaskReport:
    """The report of a finished task."""

    # rows of each block
    rows: tuple[int, ...]
    # bytes of its output by slice, over all destinations
    slice_bytes: tuple[int, ...]
    # None if it has no rows
    schema: pa.Schema | None
    # seconds since the Unix epoch
    start_time: float
    stop_time: float
    cache: CacheReport = CacheReport()
    # the blocks found corrupt and counted as having no rows
    corrupt: tuple[Corruption, ...] = ()
    # bytes of its output without frame-of-reference encoding; None if its output is not encoded
    unpacked_bytes: int | None = None
    # why the task returned no output; None if it returned all of it
    shortfall: Shortfall | None = None
    # with packing, (documents,) the tokens of each document, by block; None if they were known before
    documents: tuple[NDArray[np.int32], ...] | None = None
    # (rows,) the measure of each row by block; None if they were not measured
    measures: tuple[NDArray[np.float32], ...] | None = None
    # and the documents that are left out, by block
    dropped: tuple[int, ...] = ()
    # with a sort, the keys of each block that was read
    keys: tuple[pa.Table, ...] = ()
    # what it spent its time on
    profile: TaskProfile = TaskProfile()
