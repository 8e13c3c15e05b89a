"""Measures the shuffle of a job from its plan, in all or some batches of an epoch; reads no data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from windrow.core.errors import PlanError
from windrow.core.source import Source
from windrow.io.catalog.file_source import FileSource
from windrow.io.catalog.row_ids import RowIdSource
from windrow.pipeline.plan.job import Job
from windrow.pipeline.plan.program import Program
from windrow.pipeline.quality.epoch_order import EpochOrder, full_order
from windrow.pipeline.quality.measures import (
    MEAN_DISPLACEMENT,
    Distribution,
    count_distinct,
    displacement_quantile,
    expect_distinct,
    find_entropy,
    meet_again,
    meeting_probability,
    neighbour_distance,
    summarise,
)
from windrow.pipeline.quality.shuffle_report import ShuffleReport
from windrow.shuffle.order.keys import derive_key

Ints = NDArray[np.int64]

# A million positions take seconds and some 100 MB.
_MAX_ROWS = 2**19
_MAX_SEGMENTS = 512
# An order of up to 2^16 rows is computed as a whole, in milliseconds.
_MAX_WINDOWS = 512
# Neighbours are compared within a segment, so that of tiny batches it holds several.
_MIN_SEGMENT_ROWS = 256
MAX_BATCH_ROWS = 2**20
# of the full shuffle that is compared with; that of a pipeline would give the same order if its window is the dataset
_REFERENCE_SEED = -1
_SHARES = [step / 20 for step in range(21)]


@dataclass(frozen=True, eq=False)
class BatchSample:
    """Segments of an epoch: each is ``batches`` whole batches in turn."""

    starts: Ints  # (segments,) the first row of each, ascending
    batches: int  # of a segment
    batch_rows: int

    @property
    def segment_rows(self) -> int:
        return self.batches * self.batch_rows

    @property
    def rows(self) -> Ints:
        """(segments · segment_rows,) the rows of the epoch that are measured, ascending."""
        return (self.starts[:, None] + np.arange(self.segment_rows)).ravel()


def choose_batches(total: int, batch_rows: int, windows: int) -> BatchSample:
    """Choose full batches of an epoch of ``total`` rows, evenly spread over it, always the same ones.

    An epoch of up to 2^19 rows is measured whole if it has at most 512 windows. Of a larger one, at most that many
    rows are chosen, in at most 512 segments; a single batch can exceed that. A dataset of less than a batch is one
    batch.

    >>> sample = choose_batches(10_000_000, 4096, windows=16)
    >>> len(sample.starts), sample.segment_rows
    (128, 4096)
    >>> sample = choose_batches(1000, 300, windows=1)
    >>> sample.batches, len(sample.rows)
    (3, 900)
    """
    size = min(batch_rows, total)
    each = min(max(1, -(-_MIN_SEGMENT_ROWS // size)), total // size)
    if total <= _MAX_ROWS and windows <= _MAX_WINDOWS:
        # all batches are one segment, so that all neighbours are compared
        whole = total // size
        return BatchSample(np.arange(1, dtype=np.int64), whole, size)
    segments = total // (each * size)
    touched = max(1, each * size * windows // total)
    chosen = max(1, min(segments, _MAX_SEGMENTS, _MAX_ROWS // (each * size), _MAX_WINDOWS // touched))
    # one in each of equally large parts of the epoch
    key = int.from_bytes(derive_key(0, "report", 0, 0)[:16], "little")
    raw = np.random.Philox(key=key).random_raw(chosen)
    parts = np.arange(chosen + 1, dtype=object) * segments // chosen
    places = [
        int(first + draw % (stop - first))
        for first, stop, draw in zip(parts[:-1], parts[1:], raw.tolist(), strict=True)
    ]
    return BatchSample(np.array(places, np.int64) * (each * size), each, size)


@dataclass(frozen=True, eq=False)
class _Groups:
    """The row groups, or blocks, that the stored rows belong to."""

    kind: Literal["row groups", "blocks"]
    ends: Ints

    @property
    def sizes(self) -> Ints:
        return np.diff(self.ends, prepend=0)

    def of(self, stored: Ints) -> Ints:
        return np.searchsorted(self.ends, stored, side="right")


def measure_job(job: Job, counts: Ints, *, batch_rows: int, epoch: int) -> ShuffleReport:
    """Measure an epoch of a job whose blocks deliver ``counts`` rows; the arguments are those of `shuffle_report`."""
    total = int(counts.sum())
    _check_sizes(job, total, batch_rows)
    order = _order(job, counts, epoch)
    sample = choose_batches(total, batch_rows, order.plan.windows)
    groups = _find_groups(job.source, counts)
    rows = sample.rows
    stored, full = order.stored_rows(rows), full_order(counts, _REFERENCE_SEED).stored_rows(rows)
    ours, theirs = _Measured.of(stored, sample, groups, total), _Measured.of(full, sample, groups, total)
    again = _find_recurrence(job, counts, stored.reshape(-1, sample.batch_rows), epoch)
    return ShuffleReport(
        rows=total,
        blocks=len(counts),
        windows=int(np.count_nonzero(np.diff(order.window_starts))),
        groups=int(np.count_nonzero(groups.sizes)),
        group_kind=groups.kind,
        shuffle="nothing" if job.seed is None else "blocks" if job.shuffles_blocks else "rows",
        seed=job.seed,
        epoch=epoch,
        batch_size=sample.batch_rows,
        sampled_batches=len(sample.starts) * sample.batches,
        sampled_rows=len(rows),
        whole_epoch=len(rows) > total - sample.batch_rows,
        displacement=summarise(np.abs(stored - rows) / total),
        displacement_full=Distribution(MEAN_DISPLACEMENT, tuple(map(displacement_quantile, _SHARES))),
        groups_per_batch=ours.groups,
        groups_per_batch_full=Distribution(
            expect_distinct(groups.sizes, sample.batch_rows), theirs.groups.quantiles
        ),
        pairs_met_again=again,
        pairs_met_again_full=None if again is None else meeting_probability(total, sample.batch_rows),
        entropy=ours.entropy,
        entropy_full=theirs.entropy,
        neighbour_distance=ours.distance,
        neighbour_distance_full=theirs.distance,
        notes=tuple(_list_notes(job, counts)),
    )


@dataclass(frozen=True)
class _Measured:
    """What is measured alike of an order and of a full shuffle."""

    groups: Distribution
    entropy: float
    distance: float

    @classmethod
    def of(cls, stored: Ints, sample: BatchSample, groups: _Groups, total: int) -> _Measured:
        owners = groups.of(stored)
        segments = (-1, sample.segment_rows)
        entropy = find_entropy(stored.reshape(segments)) + find_entropy(owners.reshape(segments))
        distinct = count_distinct(owners.reshape(-1, sample.batch_rows))
        return cls(summarise(distinct), entropy, neighbour_distance(stored.reshape(segments), total))


def _check_sizes(job: Job, total: int, batch_rows: int) -> None:
    if not total:
        raise PlanError(f"{job.source!r} has no rows to measure: check the paths and the filter")
    if batch_rows > MAX_BATCH_ROWS:
        raise PlanError(
            f"batch_size={batch_rows:,}: batches of up to {MAX_BATCH_ROWS:,} rows can be measured"
        )


def _find_groups(source: Source, counts: Ints) -> _Groups:
    if isinstance(source, RowIdSource) and isinstance(source.stored, FileSource):
        source = source.stored
    if isinstance(source, FileSource):
        ends = np.cumsum(source.row_group_rows)
        # row groups of which rows are dropped, or that are not known before they are read, do not tell their borders
        if np.array_equal(source.blocks.rows, counts) and int(ends[-1]) == int(counts.sum()):
            return _Groups("row groups", ends)
    return _Groups("blocks", np.cumsum(counts))


def _order(job: Job, counts: Ints, epoch: int) -> EpochOrder:
    return EpochOrder(Program(job, 1, False, (0,)).plan(epoch), counts, job.row_seed)


def _find_recurrence(job: Job, counts: Ints, stored: Ints, epoch: int) -> float | None:
    if stored.shape[1] < 2 or job.epochs == 1:
        return None
    return meet_again(stored, _order(job, counts, epoch + 1))


def _list_notes(job: Job, counts: Ints) -> list[str]:
    notes = []
    if job.epochs == 1:
        notes.append("the pipeline has one epoch, so no rows meet again: repeat() gives more")
    if job.sort is not None:
        notes.append(
            f"{job.sort} orders the rows of each window by their values, which are not in the plan: measured is the "
            "order before the sort. Rows stay in their window, and batches hold similar rows"
        )
    if any(not stage.preserves_rows for stage in job.before):
        notes.append("rows that transforms made count with the block that they were made of")
    if int(np.count_nonzero(counts)) == 1 and job.shuffles_blocks:
        notes.append("there is one block, so shuffling blocks changes nothing")
    return notes
