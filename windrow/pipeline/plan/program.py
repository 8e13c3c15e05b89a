"""The program of a job: its epochs, windows, parts (input splits) and map tasks. Pure; runs nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache, partial
from itertools import pairwise, repeat
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.cached_properties import cached_property
from windrow.core.errors import PlanError
from windrow.core.source import joins_blocks
from windrow.pipeline.plan.cursor import Cursor
from windrow.pipeline.plan.epoch_shape import EpochCounts, EpochShape, Part, Stage
from windrow.pipeline.plan.job import Job
from windrow.pipeline.plan.mixture_legs import MixtureLegs
from windrow.pipeline.plan.neighbouring_windows import DividedEpoch
from windrow.pipeline.plan.output_bytes import OutputEstimate
from windrow.pipeline.plan.sequence_step_places import CostedSequences
from windrow.pipeline.plan.step_places import MeasuredRows, count_window_tokens
from windrow.pipeline.plan.window_places import EpochParts, WindowPlaces, WindowPlan, cut_parts, place_window
from windrow.pipeline.tasks.map_task import TaskContext
from windrow.pipeline.tasks.task import Task, Work
from windrow.shuffle.order.batching import Batching
from windrow.shuffle.order.epoch_plan import EpochPlan, plan_epoch
from windrow.shuffle.order.round_runs import MAX_SLICES
from windrow.shuffle.order.runs import WindowRuns
from windrow.shuffle.order.shard_assignment import Equal, ShardAssignment
from windrow.shuffle.order.step_runs import lay_out_steps
from windrow.shuffle.order.token_budget import TokenBudget

# A run's columns must stay in the CPU cache while its rows are placed; smaller runs cost
# more Python per row.
RUN_BYTES = 8 * 2**20
# Smaller blocks share a task, so that the cost of starting tasks is negligible.
TASK_BYTES = 32 * 2**20
# Blocks that follow one another in a task are read as one up to this many decoded bytes, in parts of several.
JOINED_BYTES = 16 * 2**20
# Opening a file and parsing its footer costs about as much as decoding this many bytes.
_FILE_BYTES = 64 * 2**10
UNKNOWN_ROWS = -1
_MAX_BATCH_ROWS = 2**62

# The epoch being read, the one being prefetched, and one that a slow shard still reads.
_CACHED_EPOCHS = 3
# Tasks of these windows are started in turn; the plan of a million blocks takes 16 MB.
_CACHED_WINDOWS = 8

_MAP = (Stage("map", needs_order=True),)
_READ_THEN_SORT = (
    Stage("read", needs_order=False),
    Stage("sort", needs_order=True, needs_window=True),
)
_READ_THEN_PLACE = (Stage("read", needs_order=False), Stage("place", needs_order=True))
# of a mixture, whose tokens are known, but not the documents of a window
_COUNT_THEN_PLACE = (_READ_THEN_PLACE[0], Stage("place", needs_order=True, needs_window=True))


@dataclass(frozen=True, eq=False)
class Program:
    """All work for some shards of a job."""

    job: Job
    shards: int  # that every epoch is assigned to
    equal: Equal  # how the last step is assigned
    members: tuple[int, ...]  # the shards that are served here: all, or the single one of this process
    # decoded bytes per task; None: `TASK_BYTES`. The order does not depend on it
    part_bytes: int | None = None
    workers: int = 1  # the processes that divide each trainer's stream, see `ShardAssignment`
    replicas: int = 1  # the readers that get the same rows, of each shard
    # of a mixture's window; with fewer, more of it is held, and less time is spent on each of its blocks
    most_slices: int = MAX_SLICES

    def __reduce__(self) -> tuple[Any, ...]:
        # recomputing the plans is cheaper than sending them
        return Program, tuple(getattr(self, each.name) for each in fields(self))

    @property
    def context(self) -> TaskContext:
        """What all tasks share."""
        job = self.job
        return TaskContext(
            job.source.reader,
            job.before,
            job.packing,
            skips_corrupt=job.skips_corrupt,
            sort=job.sort,
            seed=job.seed or 0,
            profiled=job.options.profile,
        )

    @property
    def task_bytes(self) -> int:
        """Blocks are combined into tasks of about this many decoded bytes."""
        return self.part_bytes or TASK_BYTES

    @cached_property
    def joined_bytes(self) -> int:
        """The decoded bytes up to which a task reads several blocks as one; 0: it reads them one by one."""
        job = self.job
        is_plain = not job.before and job.packing is None and job.cache is None
        return JOINED_BYTES if is_plain and joins_blocks(job.source.reader) else 0

    @cached_property
    def estimate(self) -> OutputEstimate:
        """The rows and bytes expected of each block's map output for the members' shards."""
        return OutputEstimate(self.job, share=len(self.members) / self.shards)

    @cached_property
    def stored_rows(self) -> NDArray[np.int64]:
        """(blocks,) the rows that each block delivers, `UNKNOWN_ROWS` if unknown."""
        mixture, rows = self.job.mixture, self.job.source.blocks.rows
        if mixture is not None and mixture.joined is not None:
            return mixture.block_rows
        return rows if self.job.rows_known else np.full(len(rows), UNKNOWN_ROWS, dtype=np.int64)

    def batch_rows(self, batch_size: int) -> int:
        """Rows of a batch; with packing, the tokens of its sequences."""
        rows = batch_size * self.job.sequence_rows
        if rows >= _MAX_BATCH_ROWS:
            raise PlanError(
                f"batch_size={batch_size} sequences of {self.job.sequence_rows} tokens are too many"
            )
        return rows

    def run_rows(self, batch_size: int) -> int:
        """Rows of a full run: as many whole batches as make about `RUN_BYTES`."""
        batch_rows = self.batch_rows(batch_size)
        return batch_rows * max(1, RUN_BYTES // (batch_rows * self.estimate.row_bytes))

    def batch_size(self, budget: TokenBudget) -> int:
        """About how many rows have that many tokens, by the size of rows and four bytes a token."""
        return max(1, 4 * budget.tokens // max(4, self.estimate.row_bytes))

    def assignment(self, batching: Batching, at: Cursor = Cursor()) -> ShardAssignment:
        """The shard assignment of an epoch, from a cursor on."""
        whole = ShardAssignment(
            self.shards,
            self.batch_rows(batching.size),
            self.equal,
            batching.drop_last,
            workers=self.workers,
            sequence_rows=self.job.sequence_rows,
            balance=batching.balance,
            mixed=self.job.mixture is not None,
        )
        return whole.from_row(at.row, at.groups)

    def with_seed(self, seed: int | None) -> Program:
        job = self.job.with_seed(seed)
        return self if job is self.job else replace(self, job=job)

    @cached_property
    def legs(self) -> MixtureLegs | None:
        """Of a mixture, what takes the place of its epochs' plans."""
        mixture, sizes = self.job.mixture, self.job.source.blocks.memory_bytes
        return None if mixture is None else MixtureLegs(mixture, sizes, self.task_bytes, self.most_slices)

    @property
    def windows_known(self) -> bool:
        """Whether it is known before anything is read at which row each window, or round, begins."""
        return self.job.rows_known or self.legs is not None

    def total_rows(self, epoch: int) -> int:
        """Rows of an epoch whose row counts are known; of a mixture, the row at which it ends."""
        return int(self.stored_rows.sum()) if self.legs is None else self.legs.stop(epoch)

    def fetched_windows(self, epoch: int) -> int:
        """Up to where what shards fetch of an epoch is numbered: its windows, or a mixture's rounds."""
        return self.plan(epoch).windows if self.legs is None else self.legs.leg(epoch).rounds.stop

    def window_starts(self, epoch: int) -> NDArray[np.int64]:
        """(windows + 1,) the first row of each window of an epoch whose row counts are known, and their total."""
        if self.legs is not None:
            return self.legs.round_starts(epoch)
        plan = self.plan(epoch)
        return np.append(0, np.cumsum(self.stored_rows[plan.blocks]))[plan.starts]

    def locate(self, epoch: int, row: int) -> Cursor:
        """The cursor at a row of an epoch whose row counts are known; at its end, the next epoch's first."""
        if self.legs is not None:
            return self.legs.locate(epoch, row)
        if row == 0:
            return Cursor(epoch)
        ends = self.window_starts(epoch)[1:]
        window = int(np.searchsorted(ends, row, side="right"))
        if window == len(ends):
            return Cursor(epoch + 1)
        return Cursor(epoch, row, window, int(ends[window - 1]) if window else 0)

    def shard_of(self, client: int) -> int:
        """The shard that a client of the coordinator reads.

        The replicas of a shard on one node are one client. Its number is the shard's on the first of their nodes, and
        greater by a multiple of `shards` on others.
        """
        return client % self.shards

    def divided(self, workers: int) -> Program:
        """The program in which ``workers`` processes divide each shard; all of its shards are members."""
        shards = self.shards * workers
        return replace(self, shards=shards, members=tuple(range(shards)), workers=workers)

    # The caches below close over values, not over the program: a reference cycle would delay freeing it.

    @cached_property
    def plan(self) -> Callable[[int], EpochPlan]:
        """Maps an epoch to the blocks of each of its windows."""
        job = self.job
        if self.legs is not None:
            return self.legs.plan
        return lru_cache(_CACHED_EPOCHS)(
            lambda epoch: plan_epoch(
                job.source.blocks,
                cut=job.cut,
                seed=job.seed,
                epoch=epoch,
                sorts_windows=not job.shuffles_blocks,
            )
        )

    @cached_property
    def _epoch_parts(self) -> Callable[[int], EpochParts]:
        if self.legs is not None:
            return self.legs.parts_of
        plan, task_bytes, blocks = self.plan, self.task_bytes, self.job.source.blocks
        sizes = blocks.memory_bytes
        if blocks.files is not None:
            sizes = sizes + _FILE_BYTES * (blocks.files - 1)
        return lru_cache(_CACHED_EPOCHS)(lambda epoch: cut_parts(plan(epoch), sizes, task_bytes))

    @cached_property
    def _measured(self) -> MeasuredRows:
        return MeasuredRows(self.parts, self.job.row_seed)

    @cached_property
    def _costed(self) -> CostedSequences:
        return CostedSequences(self.parts, self.job)

    @cached_property
    def parts(self) -> Callable[[int, int], WindowPlan]:
        """Maps an epoch and a window to the blocks of each of its tasks."""
        epoch_parts = self._epoch_parts
        if self.legs is not None:
            return self.legs.window
        return lru_cache(_CACHED_WINDOWS)(lambda epoch, window: epoch_parts(epoch).window(window))

    def shape(
        self,
        epoch: int,
        rows: NDArray[np.int64],
        lengths: Sequence[NDArray[np.int32] | None] = (),
        measures: Sequence[NDArray[np.float32] | None] | None = None,
        budget: TokenBudget | None = None,
    ) -> EpochShape:
        """The epoch as the scheduler sees it, with the row counts known so far; ``lengths`` as in `place_window`.

        With `Balance`, ``measures`` holds those of each block's rows. Rows that have not been measured have no places
        yet, as if they had not been counted. With a ``budget``, steps end by their tokens.
        """
        parts = self._epoch_parts(epoch)
        if measures is not None:
            rows = np.where([each is not None for each in measures], rows, UNKNOWN_ROWS)
        known = parts.are_known(rows)
        is_counted = bool(known.all())
        if self.legs is not None:
            # how many rows there are is known before it is known what they measure, or how long documents are
            rows, known = self.estimate.rows, np.ones_like(known)
        counts = [
            count if is_known else None
            for count, is_known in zip(parts.sums(rows).tolist(), known.tolist(), strict=True)
        ]
        sizes = parts.sums(self.estimate.held_bytes).tolist()
        unpacked: Iterable[int | None] = repeat(None)
        if self.estimate.packs:
            unpacked = parts.sums(self.estimate.unpacked_bytes).tolist()
        stored: Iterable[int | None] = repeat(None)
        if not (self.job.rows_known and is_counted):
            stored = parts.sums(self.estimate.rows).tolist()
        flat = tuple(map(Part, counts, sizes, unpacked, stored))
        borders = parts.windows.tolist()
        windows = tuple(flat[first:stop] for first, stop in pairwise(borders))
        if self.legs is not None:
            stages = _MAP if is_counted else _COUNT_THEN_PLACE
            rounds = self.legs.leg(epoch).rounds
            return EpochShape(windows, stages, rounds, self.most_slices, self.legs.stop(epoch))
        stages = _MAP if is_counted else _READ_THEN_PLACE
        window_tokens = None
        if budget is not None and measures is not None:
            plan = partial(self.parts, epoch)
            window_tokens = lru_cache(None)(partial(count_window_tokens, plan, measures, budget))
        count_rows = partial(parts.count_sequence_rows, lengths, self.job.sequence_rows)
        return EpochShape(
            windows=windows,
            stages=stages if self.job.sort is None else _READ_THEN_SORT,
            window_rows=count_rows if self.job.pads_sequences else None,
            window_tokens=window_tokens,
        )

    def places(
        self,
        work: Work,
        counts: EpochCounts,
        rows: NDArray[np.int64],
        *,
        assignment: ShardAssignment,
        destinations: Sequence[tuple[int, ...]],
        slices: int,
        lengths: Sequence[NDArray[np.int32] | None] = (),
        keys: Mapping[int, Sequence[pa.Table]] = MappingProxyType({}),
        measures: Sequence[NDArray[np.float32] | None] | None = None,
        total: int | None = None,
    ) -> WindowPlaces:
        """Where the rows of a work's window go: one layout per destination; the rest is as in `place_window`.

        With `Balance`, ``total`` has the epoch's rows if they are known, and ``measures`` those of each block's rows;
        None with packing, where ``lengths`` tells what sequences cost.
        """
        run_rows = self.run_rows(assignment.batch_size)
        if self.legs is not None:
            return self.legs.place(work, rows, assignment, destinations, run_rows, lengths, measures)
        lay_out = partial(lay_out_steps, destinations=destinations, run_rows=run_rows, slices=slices)
        if self.job.packing is not None and assignment.balance is not None:
            counted = DividedEpoch(work.epoch, counts, assignment, lengths, total)
            return self._costed.place(counted, work.window, lay_out, rows)
        if measures is not None:
            measured = DividedEpoch(work.epoch, counts, assignment, measures, total)
            return self._measured.place(measured, work.window, lay_out)
        first, stop = counts.first_row(work.window), counts.first_row(work.window + 1)
        assert first is not None, "rows are counted before they are placed"
        assert stop is not None, "rows are counted before they are placed"
        layouts = tuple(
            WindowRuns(
                assignment=assignment,
                first_row=first,
                stop_row=stop,
                total=counts.total,
                shards=shards,
                run_rows=run_rows,
                slices=slices,
            )
            for shards in destinations
        )
        key = work.epoch, work.window
        return place_window(
            self.job, self.parts(*key), key, layouts=layouts, rows=rows, lengths=lengths, keys=keys
        )

    def _find_joins(self, blocks: Sequence[int]) -> tuple[int, ...]:
        """Indices behind those of a task's blocks that are read as one; empty if each is read by itself."""
        if not self.joined_bytes:
            return ()
        stops, size_bytes = list[int](), 0
        for at, each in enumerate(self.job.source.blocks.memory_bytes[blocks].tolist()):
            size_bytes += each
            if at and size_bytes > self.joined_bytes:
                stops.append(at)
                size_bytes = each
        return (*stops, len(blocks)) if len(stops) + 1 < len(blocks) else ()

    def task(
        self,
        work: Work,
        stage: Stage,
        rows: NDArray[np.int64],
        places: WindowPlaces | None = None,
        measure: str | None = None,
    ) -> Task:
        """The task for a piece of work, with the row counts known so far, and where the window's rows go."""
        part = self.parts(work.epoch, work.window)[work.part].tolist()
        counts = rows if self.legs is None else self.estimate.rows
        expected = tuple(count if count >= 0 else None for count in counts[part].tolist())
        assert places is not None or not stage.needs_order, "placing needs to know where rows go"
        return Task(
            work=work,
            blocks=tuple(part),
            addresses=self.job.source.addresses(part),
            rows=expected,
            reads=work.stage == 0,
            ordering=places.ordering(work.part) if places is not None and stage.needs_order else None,
            joins=self._find_joins(part) if stage.needs_order and work.stage == 0 else (),
            measure=None if stage.needs_order else measure,
        )
