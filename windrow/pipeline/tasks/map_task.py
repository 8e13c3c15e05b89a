"""The map task: reads blocks, applies the transforms before the shuffle, and groups the rows by run.

Every executor runs the same functions. A `Task` is a small picklable value; the `TaskContext` of all is sent once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import chain

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.arrow_bytes import arrow_bytes
from windrow.core.buffer_pool import BufferPool
from windrow.core.errors import SourceError
from windrow.core.phase_clock import measuring, phase
from windrow.core.source import BlockAddress, BlockPart, BlockReader
from windrow.pipeline.statistics.phases import DECODE, SHUFFLE, TaskProfile
from windrow.pipeline.tasks.cache.cached_reader import CachingReader, Tables
from windrow.pipeline.tasks.cache.disk_cache import CacheReport, DiskCache
from windrow.pipeline.tasks.corrupt_blocks import Corruption, find_corruption, late_corruption
from windrow.pipeline.tasks.kept_rows import keep_part
from windrow.pipeline.tasks.key_columns import WindowSort
from windrow.pipeline.tasks.map_batches import MapBatches
from windrow.pipeline.tasks.output_limit import OutputLimit, OutputLimitError, Shortfall
from windrow.pipeline.tasks.row_generator import StoredRows
from windrow.pipeline.tasks.sequence_packing import SequencePacking, check_documents
from windrow.pipeline.tasks.task_profile import TaskMeter, timed_parts
from windrow.pipeline.tasks.transforms import apply_maps, check_schema
from windrow.pipeline.tasks.work import Work
from windrow.shuffle.kernels.destinations import Destinations
from windrow.shuffle.kernels.group_rows import group_rows
from windrow.shuffle.kernels.map_output import MapOutput
from windrow.shuffle.kernels.ordered_rows import OrderedRows, are_in_order
from windrow.shuffle.order.document_order import token_rows
from windrow.shuffle.order.runs import WindowRuns
from windrow.shuffle.order.window_order import WindowOrder

__all__ = [
    "PLACED_TOKENS",
    "Documents",
    "Ordering",
    "Task",
    "TaskContext",
    "TaskOutput",
    "TaskReport",
    "run_task",
]

# [destination][slice] -> map outputs, one for each table read, or rows that stay in their order
TaskOutput = list[list[list[MapOutput | OrderedRows]]]

# With packing, tokens that are placed at a time, unless a document has more. Their epoch rows, runs and places take
# up to 32 bytes each.
PLACED_TOKENS = 2**20

# stands for a skipped block
_EMPTY_BLOCK = pa.table({})


@dataclass(frozen=True)
class TaskContext:
    """What all tasks of a job share."""

    reader: BlockReader
    # transforms before the shuffle
    before: tuple[MapBatches, ...]
    # how transformed rows, then documents, become tokens, which are the rows of all that follows; None: not at all
    packing: SequencePacking | None = None
    disk: DiskCache | None = None
    # whether a corrupt block counts as having no rows, unless its rows already have positions
    skips_corrupt: bool = False
    # by which the rows of each window are sorted; None: they are not
    sort: WindowSort | None = None
    # whether its outputs stay in the memory of this process
    stays_here: bool = False
    # that of the shuffle, for transforms that draw random numbers; 0 without one
    seed: int = 0
    # whether to measure what tasks spend their time on
    profiled: bool = True

    @property
    def is_plain(self) -> bool:
        """Whether blocks are delivered as they are read."""
        return not self.before and self.packing is None

    def keeps_rows(self, ordering: Ordering) -> bool:
        """Whether transformed rows are delivered as they are, in stored order, so that none has to be moved."""
        return (
            self.stays_here
            and bool(self.before)
            and ordering.is_stored_order
            and are_in_order(ordering.layouts)
        )

    def transform(
        self, table: pa.Table, address: BlockAddress, epoch: int = 0
    ) -> tuple[pa.Table, NDArray[np.int32] | None]:
        """What becomes of a block, and with packing, the tokens of each of its documents."""
        table = apply_maps(table, self.before, address.origin, StoredRows(address.number, epoch, self.seed))
        return (table, None) if self.packing is None else self.packing.flatten(table, address.origin)


@dataclass(frozen=True)
class Documents:
    """The documents of a block, whose tokens are its rows."""

    # (documents,) the epoch row of the first token of each, and its number of tokens
    starts: NDArray[np.int64]
    lengths: NDArray[np.int32]


@dataclass(frozen=True)
class Ordering:
    """Where the rows of a task go."""

    order: WindowOrder
    # for each block, the number of its first row among the stored rows of the window
    offsets: tuple[int, ...]
    # the window's runs, one layout for each destination
    layouts: tuple[WindowRuns, ...]
    # with packing, the documents of each block, which are ordered instead of its rows
    documents: tuple[Documents, ...] | None = None
    # with a sort, (rows,) the epoch row of each row of each block, which `order` does not know
    sorted_rows: tuple[NDArray[np.int64], ...] | None = None

    @property
    def is_stored_order(self) -> bool:
        """Whether rows keep the order of their blocks."""
        return self.order.permutation is None and self.documents is None and self.sorted_rows is None

    def place(self, at: int, start: int, part: BlockPart) -> Iterator[tuple[BlockPart, NDArray[np.int64]]]:
        """Yield the rows of a part and their epoch rows; ``start`` is its first row in block ``at`` of the task.

        Tokens are yielded some documents at a time, since they are few bytes beside their epoch rows.
        """
        if self.sorted_rows is not None:
            yield part, self.sorted_rows[at][start : start + part.num_rows]
            return
        if self.documents is None:
            first = self.offsets[at] + start
            yield part, self.order.epoch_rows(first, first + part.num_rows)
            return
        documents, table = self.documents[at], part.select(list(range(len(part.schema))))
        stops = np.cumsum(documents.lengths, dtype=np.int64)
        first = token = 0
        while first < len(stops):
            # at least one document
            last = max(first + 1, int(np.searchsorted(stops, token + PLACED_TOKENS, side="right")))
            rows = token_rows(documents.starts[first:last], documents.lengths[first:last])
            if len(rows):
                yield table.slice(token, len(rows)), rows
            first, token = last, token + len(rows)


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
    # the limit of its output; a task that exceeds it returns no output
    max_bytes: int | None = None
    # whether to transform a few rows of each block first, to estimate the output of the block
    samples: bool = False


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
    # with a sort, the keys of each block that was read
    keys: tuple[pa.Table, ...] = ()
    # what it spent its time on
    profile: TaskProfile = TaskProfile()


def run_task(
    context: TaskContext,
    task: Task,
    tables: Sequence[pa.Table] | None,
    pool: BufferPool,
    cached: Sequence[Tables] = (),
    pause: Callable[[], None] = lambda: None,
) -> tuple[TaskReport, list[pa.Table] | TaskOutput, list[Tables]]:
    """Run one task; returns its report, the tables or map outputs, and the tables of the blocks in ``task.keeps``.

    ``tables`` holds the table of each block if an earlier task read them, ``cached`` the cached tables of the
    blocks in ``task.found``. ``pause`` is called every few milliseconds, between columns.
    """
    if not context.profiled:
        make_report, output, kept = _run_task(context, task, tables, pool, cached, pause)
        return make_report(), output, kept
    meter = TaskMeter()
    with measuring(meter.clock, SHUFFLE):
        make_report, output, kept = _run_task(context, task, tables, pool, cached, pause)
    return make_report(profile=meter.profile()), output, kept


def _run_task(
    context: TaskContext,
    task: Task,
    tables: Sequence[pa.Table] | None,
    pool: BufferPool,
    cached: Sequence[Tables],
    pause: Callable[[], None],
) -> tuple[Callable[..., TaskReport], list[pa.Table] | TaskOutput, list[Tables]]:
    """As `run_task`, but the first result makes the report, given its ``profile``."""
    found = dict(zip(task.found, cached, strict=True))
    reader = CachingReader(
        context.reader, context.disk, task.blocks, task.addresses, found=found, keeps=task.keeps
    )
    start_time = time.time()
    ordering = task.ordering
    observed = _Observed()
    output_limit = OutputLimit(task.max_bytes, task.rows, samples=task.samples)
    read_tables: list[pa.Table] = []
    keys: list[pa.Table] = []
    layouts = ordering.layouts if ordering else ()
    destinations = Destinations(layouts) if ordering else None
    keeps_rows = ordering is not None and context.keeps_rows(ordering)
    output = _empty_output(layouts)
    slice_bytes = np.zeros(layouts[0].slices if layouts else 1, np.int64)
    try:
        with late_corruption() if context.skips_corrupt else nullcontext():
            for at in range(len(task.addresses)):
                block_rows = 0
                for part in _block_parts(context, task, tables, reader, observed, output_limit, at):
                    observed.add(part, task.addresses[at].origin)
                    if ordering is None or destinations is None:
                        read_tables.append(part)
                        if context.sort is not None:
                            keys.append(context.sort.keys_of(part, task.addresses[at].origin))
                            slice_bytes += context.sort.held_bytes(keys[-1])
                        slice_bytes += arrow_bytes(part)
                    elif keeps_rows and part.num_rows:
                        first = ordering.order.first_row + ordering.offsets[at] + block_rows
                        slice_bytes += keep_part(part, first, layouts[0], output[0], pool)
                    elif part.num_rows:
                        for rows, epoch_rows in ordering.place(at, block_rows, part):
                            slice_bytes += _group_part(rows, epoch_rows, destinations, output, pool, pause)
                            # free the part of a part before the next one is placed
                            del rows, epoch_rows
                    block_rows += part.num_rows
                    # free this part before the next one is decoded
                    del part
                _check_rows(task, at, block_rows)
                observed.rows.append(block_rows)
                output_limit.add(at, block_rows, int(slice_bytes.sum()))
    except OutputLimitError as error:
        make_report = partial(TaskReport, (), (), None, start_time, time.time(), shortfall=error.shortfall)
        # Ray expects the declared number of return values
        return make_report, ([] if ordering is None else _empty_output(layouts)), [[] for _ in task.keeps]
    map_outputs = chain.from_iterable(chain.from_iterable(output))
    unpacked = None if ordering is None else sum(map_output.unpacked_bytes for map_output in map_outputs)
    make_report = partial(
        TaskReport,
        tuple(observed.rows),
        tuple(slice_bytes.tolist()),
        observed.schema,
        start_time,
        time.time(),
        reader.report(),
        tuple(observed.corrupt),
        unpacked,
        documents=None if context.packing is None or ordering is not None else tuple(observed.documents),
        keys=tuple(keys),
    )
    return make_report, (read_tables if ordering is None else output), reader.cached_tables


def _empty_output(layouts: Sequence[WindowRuns]) -> TaskOutput:
    return [[[] for _ in range(layout.slices)] for layout in layouts]


class _Observed:
    """Row counts, corrupt blocks and the schema, as observed so far."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.documents: list[NDArray[np.int32]] = []
        self.corrupt: list[Corruption] = []
        self.schema: pa.Schema | None = None

    def add(self, part: BlockPart, origin: str) -> None:
        """Check that the schema is that of the rows before, and record it."""
        if part.num_rows:
            if self.schema is not None:
                check_schema(self.schema, part.schema, origin)
            self.schema = part.schema


def _block_parts(
    context: TaskContext,
    task: Task,
    tables: Sequence[pa.Table] | None,
    reader: CachingReader,
    observed: _Observed,
    output_limit: OutputLimit,
    at: int,
) -> Iterable[BlockPart]:
    """The parts of a block: a single one if there are transforms, since these need whole blocks."""
    address, epoch = task.addresses[at], task.work.epoch
    if tables is not None:
        return [tables[at]]
    if context.is_plain and task.ordering is not None:
        if at in task.skips:
            return [_EMPTY_BLOCK]
        return timed_parts(reader.parts(at)) if context.profiled else reader.parts(at)
    table = _EMPTY_BLOCK if at in task.skips else _read_block(context, task, reader, at, observed)
    if table is not _EMPTY_BLOCK and not context.is_plain:
        output_limit.check_sample(at, table, lambda sample: context.transform(sample, address, epoch)[0])
    table, lengths = context.transform(table, address, epoch)
    if lengths is not None:
        observed.documents.append(lengths)
        if task.ordering is not None and task.ordering.documents is not None:
            check_documents(task.ordering.documents[at].lengths, lengths, address.origin)
    return [table]


def _read_block(
    context: TaskContext, task: Task, reader: CachingReader, at: int, observed: _Observed
) -> pa.Table:
    """Read a block; returns `_EMPTY_BLOCK` if it is corrupt and can still be skipped."""
    with phase(DECODE):
        if not context.skips_corrupt or task.rows[at] is not None:
            return reader.read(at)
        found = find_corruption(partial(reader.read, at), task.blocks[at])
    if not isinstance(found, Corruption):
        return found
    observed.corrupt.append(found)
    return _EMPTY_BLOCK


def _check_rows(task: Task, at: int, rows: int) -> None:
    expected = task.rows[at]
    if expected is not None and rows != expected:
        raise SourceError(
            f"{task.addresses[at].origin}: read {rows} rows, expected {expected}. "
            "The file changed, or a transform is not a pure function of its rows: "
            "list the dataset again, or pass preserves_rows=False"
        )


def _group_part(
    part: BlockPart,
    epoch_rows: NDArray[np.int64],
    destinations: Destinations,
    output: TaskOutput,
    pool: BufferPool,
    pause: Callable[[], None],
) -> NDArray[np.int64]:
    """Group rows into map outputs; returns the bytes of each slice, over all destinations."""
    sources, runs, places = destinations.assign(epoch_rows)
    map_outputs = group_rows(part, sources, runs, places, destinations.slice_starts, pool, pause)
    sizes = []
    for map_outputs_of_slice, map_output in zip(chain.from_iterable(output), map_outputs, strict=True):
        sizes.append(map_output.nbytes if map_output.num_rows else 0)
        if map_output.num_rows:
            map_outputs_of_slice.append(map_output)
    return np.array(sizes, np.int64).reshape(len(output), -1).sum(axis=0)
