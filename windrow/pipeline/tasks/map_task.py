"""The map task: reads blocks, applies the transforms before the shuffle, and groups the rows by run, within a limit.

Every executor runs the same functions. A `Task` is a small picklable value; the `TaskContext` of all is sent once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.arrow_bytes import arrow_bytes
from windrow.core.buffer_pool import BufferPool
from windrow.core.errors import SourceError
from windrow.core.phase_clock import measuring, phase
from windrow.core.source import BlockAddress, BlockPart, BlockReader
from windrow.pipeline.statistics.phases import DECODE, SHUFFLE
from windrow.pipeline.tasks.cache.cached_reader import CachingReader, Tables
from windrow.pipeline.tasks.cache.disk_cache import DiskCache
from windrow.pipeline.tasks.document_columns import decode_documents
from windrow.pipeline.tasks.held_arrays import as_immutable
from windrow.pipeline.tasks.key_columns import WindowSort
from windrow.pipeline.tasks.map_batches import MapBatches
from windrow.pipeline.tasks.output_limit import OutputLimit, OutputLimitError
from windrow.pipeline.tasks.row_generator import StoredRows
from windrow.pipeline.tasks.row_measure import measure_rows
from windrow.pipeline.tasks.sequence_packing import SequencePacking, check_documents
from windrow.pipeline.tasks.task import (
    Corruption,
    Ordering,
    Task,
    TaskMeter,
    TaskReport,
    find_corruption,
    late_corruption,
    timed_parts,
)
from windrow.pipeline.tasks.transforms import apply_maps, check_schema
from windrow.shuffle.kernels.group_rows import group_rows
from windrow.shuffle.kernels.map_output import MapOutput
from windrow.shuffle.kernels.pieces import Pieces, group_pieces
from windrow.shuffle.order.divided_rounds import DividedDestinations
from windrow.shuffle.order.ordered_rows import OrderedRows, are_in_order, check_movable, cut_into_runs
from windrow.shuffle.order.round_runs import RoundDestinations, RoundRuns
from windrow.shuffle.order.runs import Destinations, WindowRuns
from windrow.shuffle.order.step_runs import StepDestinations, StepRuns, find_destinations

# [destination][slice] -> map outputs, one for each table read, or rows that stay in their order
TaskOutput = list[list[list[MapOutput | OrderedRows]]]
# stands for a skipped block
_EMPTY_BLOCK = pa.table({})


def _keep_part(
    part: BlockPart,
    first_row: int,
    layout: WindowRuns,
    output: Sequence[list[MapOutput | OrderedRows]],
    pool: BufferPool,
) -> NDArray[np.int64]:
    """Add rows of the epoch from ``first_row`` on to the output, by slice; returns the bytes of each slice."""
    table = part.select(list(range(len(part.schema))))
    check_movable(table.slice(0, 1), pool)
    # views of the source's own tables can be among them, which no batch may write to
    columns = [as_immutable(column) for column in table.columns]
    by_slice = cut_into_runs(pa.Table.from_arrays(columns, schema=table.schema), first_row, layout)
    for found, of_slice in zip(by_slice, output, strict=True):
        of_slice.extend(found)
    return np.array([sum(rows.nbytes for rows in found) for found in by_slice], np.int64)


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
            and are_in_order(cast("Sequence[WindowRuns]", ordering.layouts))
        )

    def transform(
        self, table: pa.Table, address: BlockAddress, epoch: int = 0
    ) -> tuple[pa.Table, NDArray[np.int32] | None]:
        """What becomes of a block, and with packing, the tokens of each of its documents."""
        table = self.apply(table, address, epoch)
        return (table, None) if self.packing is None else self.packing.flatten(table, address.origin)

    def apply(self, table: pa.Table, address: BlockAddress, epoch: int) -> pa.Table:
        """A block after the transforms before the shuffle."""
        return apply_maps(table, self.before, address.origin, StoredRows(address.number, epoch, self.seed))


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
    measures: list[NDArray[np.float32]] = []
    layouts = ordering.layouts if ordering else ()
    destinations = find_destinations(layouts) if ordering else None
    keeps_rows = ordering is not None and context.keeps_rows(ordering)
    output = _empty_output(layouts)
    slice_bytes = np.zeros(layouts[0].slices if layouts else 1, np.int64)
    try:
        with late_corruption() if context.skips_corrupt else nullcontext():
            for at in range(len(task.addresses)):
                block_rows = 0
                for part in _block_parts(context, task, tables, reader, observed, output_limit, at, pool):
                    observed.add(part, task.addresses[at].origin)
                    if ordering is None or destinations is None:
                        read_tables.append(part)
                        if task.measure is not None:
                            measures.append(measure_rows(part, task.measure, task.addresses[at].origin))
                        if context.sort is not None:
                            keys.append(context.sort.keys_of(part, task.addresses[at].origin))
                            slice_bytes += context.sort.held_bytes(keys[-1])
                        slice_bytes += arrow_bytes(part)
                    elif keeps_rows and part.num_rows:
                        first = ordering.order.first_row + ordering.offsets[at] + block_rows
                        slice_bytes += _keep_part(
                            part, first, cast("WindowRuns", layouts[0]), output[0], pool
                        )
                    elif part.num_rows:
                        if ordering.list_limit is not None:
                            part = ordering.list_limit.cut(part, task.addresses[at].origin)
                        for grouped in _group_part(
                            part, ordering, at, block_rows, context.packing, destinations, pool, pause
                        ):
                            slice_bytes += _add_outputs(grouped, output)
                    block_rows += part.num_rows
                    # free this part before the next one is decoded
                    del part
                _check_rows(context, task, at, block_rows)
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
        measures=None if task.measure is None else tuple(measures),
        dropped=tuple(observed.dropped),
        keys=tuple(keys),
    )
    return make_report, (read_tables if ordering is None else output), reader.cached_tables


def _empty_output(layouts: Sequence[WindowRuns] | Sequence[RoundRuns] | Sequence[StepRuns]) -> TaskOutput:
    return [[[] for _ in range(layout.slices)] for layout in layouts]


class _Observed:
    """Row counts, corrupt blocks and the schema, as observed so far."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.documents: list[NDArray[np.int32]] = []
        self.dropped: list[int] = []
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
    pool: BufferPool,
) -> Iterable[BlockPart]:
    """The parts of a block: a single one if there are transforms, since these need whole blocks."""
    address, epoch = task.addresses[at], task.work.epoch
    if tables is not None:
        return [tables[at]]
    if context.is_plain and task.ordering is not None:
        if at in task.skips:
            return [_EMPTY_BLOCK]
        return timed_parts(reader.parts(at)) if context.profiled else reader.parts(at)
    table = _EMPTY_BLOCK if at in task.skips else _read_block(context, task, reader, at, observed, pool)
    if table is not _EMPTY_BLOCK and not context.is_plain:
        output_limit.check_sample(at, table, lambda sample: context.transform(sample, address, epoch)[0])
    table = context.apply(table, address, epoch)
    if context.packing is not None:
        observed.dropped.append(context.packing.count_long(table))
        table, lengths = context.packing.flatten(table, address.origin)
        observed.documents.append(lengths)
        if task.ordering is not None and task.ordering.documents is not None:
            check_documents(task.ordering.documents[at].lengths, lengths, address.origin)
    return [table]


def _read_block(
    context: TaskContext, task: Task, reader: CachingReader, at: int, observed: _Observed, pool: BufferPool
) -> pa.Table:
    """Read a block; returns `_EMPTY_BLOCK` if it is corrupt and can still be skipped."""
    with phase(DECODE):
        if not context.skips_corrupt or task.rows[at] is not None:
            read = None
            if context.packing is not None and not context.before and not reader.caches:
                read = decode_documents(reader.parts(at), context.packing.columns, pool)
            return reader.read(at) if read is None else read
        found = find_corruption(partial(reader.read, at), task.blocks[at])
    if not isinstance(found, Corruption):
        return found
    observed.corrupt.append(found)
    return _EMPTY_BLOCK


def _check_rows(context: TaskContext, task: Task, at: int, rows: int) -> None:
    expected = task.rows[at]
    if expected is not None and rows != expected:
        what = "rows" if context.packing is None else "tokens"
        raise SourceError(
            f"{task.addresses[at].origin}: read {rows} {what}, expected {expected}. "
            "The file changed, or a transform is not a pure function of its rows: "
            "list the dataset again, or pass preserves_rows=False"
        )


def _group_part(
    part: BlockPart,
    ordering: Ordering,
    at: int,
    first_row: int,
    packing: SequencePacking | None,
    destinations: Destinations | RoundDestinations | DividedDestinations | StepDestinations,
    pool: BufferPool,
    pause: Callable[[], None],
) -> Iterator[list[MapOutput]]:
    """Group the rows of a part by run; the tokens of documents are grouped some documents at a time."""
    if packing is None:
        entries = destinations.assign(ordering.place(at, first_row, part))
        yield group_rows(part, *entries, destinations.slice_starts, pool, pause)
        return
    table = part.select(list(range(len(part.schema))))

    def group(table: pa.Table, pieces: Pieces, epoch_rows: NDArray[Any]) -> list[MapOutput]:
        sources, runs, places = destinations.assign(epoch_rows)
        held = pieces if sources is None else pieces.select(sources)
        return group_pieces(table, held, runs, places, destinations.slice_starts, pool, pause)

    for placed in ordering.place_documents(at, packing.seq_len, table):
        yield group(*placed)
    padding = ordering.place_padding(at)
    if padding is not None:
        yield group(packing.padding(table.schema, int(padding[0].counts.max())), *padding)


def _add_outputs(map_outputs: Sequence[MapOutput], output: TaskOutput) -> NDArray[np.int64]:
    """Add map outputs to a task's output; returns the bytes of each slice, over all destinations."""
    sizes = []
    for map_outputs_of_slice, map_output in zip(chain.from_iterable(output), map_outputs, strict=True):
        sizes.append(map_output.nbytes if map_output.num_rows else 0)
        if map_output.num_rows:
            map_outputs_of_slice.append(map_output)
    return np.array(sizes, np.int64).reshape(len(output), -1).sum(axis=0)
