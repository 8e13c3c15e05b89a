"""The map task: reads blocks, applies the transforms before the shuffle, and groups the rows by run, within a limit.

Every executor runs the same functions. A `Task` is a small picklable value; the `TaskContext` of all is sent once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain, pairwise
from typing import Any, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.arrow_bytes import arrow_bytes
from windrow.core.buffer_pool import BufferPool
from windrow.core.errors import SourceError
from windrow.core.phase_clock import measuring, phase
from windrow.core.source import BlockAddress, BlockPart, BlockReader, CorruptBlockError
from windrow.pipeline.statistics.phases import DECODE, SHUFFLE, TaskProfile
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
    Shortfall,
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
from windrow.shuffle.order.ordered_rows import OrderedRows, are_in_order, check_movable, cut_into_runs
from windrow.shuffle.order.round_runs import RoundRuns
from windrow.shuffle.order.runs import WindowRuns
from windrow.shuffle.order.step_runs import StepRuns, find_destinations

# [destination][slice] -> map outputs, one for each table read, or rows that stay in their order
TaskOutput = list[list[list[MapOutput | OrderedRows]]]
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
        running = _TaskRun(context, task, tables, pool, cached, pause)
        return running.results(running.run(), TaskProfile())
    meter = TaskMeter()
    with measuring(meter.clock, SHUFFLE):
        running = _TaskRun(context, task, tables, pool, cached, pause)
        shortfall = running.run()
    return running.results(shortfall, meter.profile())


def _empty_output(layouts: Sequence[WindowRuns] | Sequence[RoundRuns] | Sequence[StepRuns]) -> TaskOutput:
    return [[[] for _ in range(layout.slices)] for layout in layouts]


class _TaskRun:
    """One run of a task, with what it has read and made so far; the arguments are those of `run_task`."""

    def __init__(
        self,
        context: TaskContext,
        task: Task,
        tables: Sequence[pa.Table] | None,
        pool: BufferPool,
        cached: Sequence[Tables],
        pause: Callable[[], None],
    ) -> None:
        self._start_time = time.time()
        self._context, self._task, self._tables = context, task, tables
        self._pool, self._pause = pool, pause
        found = dict(zip(task.found, cached, strict=True))
        self._reader = CachingReader(
            context.reader, context.disk, task.blocks, task.addresses, found=found, keeps=task.keeps
        )
        self._limit = OutputLimit(task.max_bytes, task.rows, samples=task.samples)
        ordering = task.ordering
        self._layouts = ordering.layouts if ordering else ()
        if ordering is not None:
            self._destinations = find_destinations(ordering.layouts)
        self._keeps_rows = ordering is not None and context.keeps_rows(ordering)
        self._output = _empty_output(self._layouts)
        self._slice_bytes = np.zeros(self._layouts[0].slices if self._layouts else 1, np.int64)
        self._schema: pa.Schema | None = None
        # by block
        self._rows: list[int] = []
        self._documents: list[NDArray[np.int32]] = []
        self._dropped: list[int] = []
        self._corrupt: list[Corruption] = []
        # of a task that only reads
        self._read_tables: list[pa.Table] = []
        self._keys: list[pa.Table] = []
        self._measures: list[NDArray[np.float32]] = []

    def run(self) -> Shortfall | None:
        """Run all blocks, up to the limit of the output."""
        try:
            with late_corruption() if self._context.skips_corrupt else nullcontext():
                for first, stop in pairwise((0, *self._find_joins())):
                    joined = self._reader.join(first, stop) if stop - first > 1 else None
                    if joined is not None:
                        self._run_joined(joined, first, stop)
                    else:
                        for at in range(first, stop):
                            self._run_block(at)
        except OutputLimitError as error:
            return error.shortfall
        return None

    def results(
        self, shortfall: Shortfall | None, profile: TaskProfile
    ) -> tuple[TaskReport, list[pa.Table] | TaskOutput, list[Tables]]:
        """What `run_task` returns."""
        context, task, only_reads = self._context, self._task, self._task.ordering is None
        if shortfall is not None:
            times = self._start_time, time.time()
            report = TaskReport((), (), None, *times, shortfall=shortfall, profile=profile)
            # Ray expects the declared number of return values
            return report, ([] if only_reads else _empty_output(self._layouts)), [[] for _ in task.keeps]
        map_outputs = chain.from_iterable(chain.from_iterable(self._output))
        unpacked_bytes = None if only_reads else sum(output.unpacked_bytes for output in map_outputs)
        report = TaskReport(
            tuple(self._rows),
            tuple(self._slice_bytes.tolist()),
            self._schema,
            self._start_time,
            time.time(),
            self._reader.report(),
            tuple(self._corrupt),
            unpacked_bytes,
            documents=tuple(self._documents) if context.packing is not None and only_reads else None,
            measures=None if task.measure is None else tuple(self._measures),
            dropped=tuple(self._dropped),
            keys=tuple(self._keys),
            profile=profile,
        )
        return report, (self._read_tables if only_reads else self._output), self._reader.cached_tables

    def _run_block(self, at: int) -> None:
        ordering, origin = self._task.ordering, self._task.addresses[at].origin
        block_rows = 0
        for part in self._parts(at):
            self._note_schema(part, origin)
            if ordering is None:
                self._keep_table(part, origin)
            elif self._keeps_rows and part.num_rows:
                self._keep_part(part, ordering.order.first_row + ordering.offsets[at] + block_rows)
            elif part.num_rows:
                if ordering.list_limit is not None:
                    part = ordering.list_limit.cut(part, origin)
                self._group_part(part, ordering, at, block_rows)
            block_rows += part.num_rows
            # free this part before the next one is decoded
            del part
        self._check_rows(origin, self._task.rows[at], block_rows)
        self._rows.append(block_rows)
        self._limit.add(at, block_rows, int(self._slice_bytes.sum()))

    def _find_joins(self) -> Sequence[int]:
        """Indices behind the blocks that are read as one, if there are any and their rows are placed one by one."""
        task, ordering = self._task, self._task.ordering
        each = range(1, len(task.addresses) + 1)
        if not task.joins or self._tables is not None or task.skips or not self._context.is_plain:
            return each
        if ordering is None or ordering.given_rows is not None or None in task.rows:
            return each
        starts = accumulate(cast("tuple[int, ...]", task.rows)[:-1], initial=ordering.offsets[0])
        return task.joins if tuple(starts) == ordering.offsets else each

    def _run_joined(self, joined: BlockAddress, first: int, stop: int) -> None:
        """Read blocks ``first`` to ``stop`` as one; an error is that of the block which causes it."""
        task, ordering = self._task, cast("Ordering", self._task.ordering)
        rows = cast("tuple[int, ...]", task.rows)[first:stop]
        done, expected = 0, sum(rows)
        parts: Iterable[BlockPart] = self._reader.joined_parts(joined, stop - first)
        try:
            for part in timed_parts(parts) if self._context.profiled else parts:
                self._note_schema(part, joined.origin)
                part_rows = part.num_rows
                if done + part_rows > expected:
                    self._find_changed_block(joined, first, stop, done + part_rows)
                if part_rows:
                    if ordering.list_limit is not None:
                        part = ordering.list_limit.cut(part, joined.origin)
                    self._group_part(part, ordering, first, done)
                done += part_rows
                # free this part before the next one is decoded
                del part
                self._limit.add_part(part_rows, int(self._slice_bytes.sum()))
        except CorruptBlockError:
            for at in range(first, stop):
                self._reader.read(at)
            raise
        if done < expected:
            self._find_changed_block(joined, first, stop, done)
        self._rows += rows

    def _find_changed_block(self, joined: BlockAddress, first: int, stop: int, rows: int) -> None:
        """Raise the error of the block that has other rows than it must have, where all of them have so many."""
        for at in range(first, stop):
            found = sum(part.num_rows for part in self._reader.parts(at))
            self._check_rows(self._task.addresses[at].origin, self._task.rows[at], found)
        # a file that has changed once more
        self._check_rows(joined.origin, sum(count or 0 for count in self._task.rows[first:stop]), rows)

    def _parts(self, at: int) -> Iterable[BlockPart]:
        """The parts of a block: a single one if there are transforms, since these need whole blocks."""
        context, task, address = self._context, self._task, self._task.addresses[at]
        if self._tables is not None:
            return [self._tables[at]]
        if context.is_plain and task.ordering is not None:
            if at in task.skips:
                return [_EMPTY_BLOCK]
            parts = self._reader.parts(at)
            return timed_parts(parts) if context.profiled else parts
        epoch = task.work.epoch
        table = _EMPTY_BLOCK if at in task.skips else self._read_block(at)
        if table is not _EMPTY_BLOCK and not context.is_plain:
            self._limit.check_sample(at, table, lambda sample: context.transform(sample, address, epoch)[0])
        table = context.apply(table, address, epoch)
        if context.packing is not None:
            self._dropped.append(context.packing.count_long(table))
            table, lengths = context.packing.flatten(table, address.origin)
            self._documents.append(lengths)
            if task.ordering is not None and task.ordering.documents is not None:
                check_documents(task.ordering.documents[at].lengths, lengths, address.origin)
        return [table]

    def _read_block(self, at: int) -> pa.Table:
        """Read a block; returns `_EMPTY_BLOCK` if it is corrupt and can still be skipped."""
        context, task, reader = self._context, self._task, self._reader
        with phase(DECODE):
            if not context.skips_corrupt or task.rows[at] is not None:
                read = None
                if context.packing is not None and not context.before and not reader.caches:
                    read = decode_documents(reader.parts(at), context.packing.columns, self._pool)
                return reader.read(at) if read is None else read
            found = find_corruption(partial(reader.read, at), task.blocks[at])
        if not isinstance(found, Corruption):
            return found
        self._corrupt.append(found)
        return _EMPTY_BLOCK

    def _note_schema(self, part: BlockPart, origin: str) -> None:
        """Check that the schema is that of the rows before."""
        if part.num_rows:
            if self._schema is not None:
                check_schema(self._schema, part.schema, origin)
            self._schema = part.schema

    def _check_rows(self, origin: str, expected: int | None, rows: int) -> None:
        if expected is not None and rows != expected:
            what = "rows" if self._context.packing is None else "tokens"
            raise SourceError(
                f"{origin}: read {rows} {what}, expected {expected}. "
                "The file changed, or a transform is not a pure function of its rows: "
                "list the dataset again, or pass preserves_rows=False"
            )

    def _keep_table(self, table: pa.Table, origin: str) -> None:
        """Keep rows for a task that places them."""
        self._read_tables.append(table)
        if self._task.measure is not None:
            self._measures.append(measure_rows(table, self._task.measure, origin))
        if self._context.sort is not None:
            self._keys.append(self._context.sort.keys_of(table, origin))
            self._slice_bytes += self._context.sort.held_bytes(self._keys[-1])
        self._slice_bytes += arrow_bytes(table)

    def _keep_part(self, part: BlockPart, first_row: int) -> None:
        """Add rows of the epoch from ``first_row`` on, which stay in their order."""
        table = part.select(list(range(len(part.schema))))
        check_movable(table.slice(0, 1), self._pool)
        # views of the source's own tables can be among them, which no batch may write to
        columns = [as_immutable(column) for column in table.columns]
        immutable = pa.Table.from_arrays(columns, schema=table.schema)
        by_slice = cut_into_runs(immutable, first_row, cast("WindowRuns", self._layouts[0]))
        for found, of_slice in zip(by_slice, self._output[0], strict=True):
            of_slice.extend(found)
        self._slice_bytes += [sum(rows.nbytes for rows in found) for found in by_slice]

    def _group_part(self, part: BlockPart, ordering: Ordering, at: int, first_row: int) -> None:
        """Group the rows of a part by run; the tokens of documents are grouped some documents at a time."""
        packing, destinations = self._context.packing, self._destinations
        if packing is None:
            entries = destinations.assign(ordering.place(at, first_row, part))
            self._add(group_rows(part, *entries, destinations.slice_starts, self._pool, self._pause))
            return
        table = part.select(list(range(len(part.schema))))
        for placed in ordering.place_documents(at, packing.seq_len, table):
            self._group_pieces(*placed)
        padding = ordering.place_padding(at)
        if padding is not None:
            rows = int(padding[0].counts.max())
            self._group_pieces(packing.padding(table.schema, rows), *padding)

    def _group_pieces(self, table: pa.Table, pieces: Pieces, epoch_rows: NDArray[Any]) -> None:
        sources, runs, places = self._destinations.assign(epoch_rows)
        held = pieces if sources is None else pieces.select(sources)
        starts = self._destinations.slice_starts
        self._add(group_pieces(table, held, runs, places, starts, self._pool, self._pause))

    def _add(self, map_outputs: Sequence[MapOutput]) -> None:
        """Add map outputs, by destination and slice, to those before."""
        sizes = []
        for of_slice, map_output in zip(chain.from_iterable(self._output), map_outputs, strict=True):
            sizes.append(map_output.nbytes if map_output.num_rows else 0)
            if map_output.num_rows:
                of_slice.append(map_output)
        self._slice_bytes += np.array(sizes, np.int64).reshape(len(self._output), -1).sum(axis=0)
