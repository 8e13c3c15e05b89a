"""Methods shared by Dataset and DatasetPipeline: transforms, schema, count, options, row lineage, iteration."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from types import EllipsisType
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy as np

from windrow.core.errors import PlanError
from windrow.core.notebook_html import format_paragraph, format_steps, format_table, format_value
from windrow.core.source import BlockAddress, RowOrigin, Source, TracingSource
from windrow.core.tracebacks import trims_traceback
from windrow.dataset.epoch_iteration import Passes
from windrow.dataset.export.export_methods import Convertible
from windrow.dataset.logical_plan import LogicalPlan
from windrow.dataset.transforms.transform_methods import Transformable
from windrow.dataset.write.write_methods import Writable
from windrow.io.catalog.row_ids import count_rows as count_blocks
from windrow.pipeline.checkpoint.lineage import Lineage
from windrow.pipeline.delivery.delivery import BatchIterator, Delivery
from windrow.pipeline.delivery.iteration_methods import Deliverable
from windrow.pipeline.exchange.derived_source import DerivedSource
from windrow.pipeline.plan.head import find_schema
from windrow.pipeline.plan.job import Job
from windrow.pipeline.plan.program import TASK_BYTES
from windrow.pipeline.plan.window_places import cut_parts
from windrow.pipeline.tasks.map_task import TaskContext
from windrow.shuffle.order.epoch_plan import plan_epoch

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from windrow.pipeline.executors.base import Executor

Self = TypeVar("Self", bound="Readable")
# in a notebook
_SHOWN_COLUMNS = 50


@dataclass(frozen=True, repr=False)
class Readable(Deliverable, Writable, Convertible, Transformable):
    """Base class of Dataset and DatasetPipeline: a logical plan that the calling process can read."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}\n  {self._plan}"

    def _repr_html_(self) -> str:
        steps = str(self._plan).split("\n")
        return format_value(
            format_paragraph(type(self).__name__, is_title=True),
            format_steps(step.strip() for step in steps),
            *_columns_html(self._plan),
        )

    @abstractmethod
    def _job(self) -> Job:
        """The job that ``iter_*`` runs."""

    def schema(self) -> pa.Schema:
        """Return the Arrow schema of the rows.

        Without transforms, nothing is read. With transforms, the first block that has rows is
        read and transformed in this process; if there are no rows, the schema of the source is
        returned. An object of a class that transforms them, such as a model, stays in this process as
        long as the dataset.

        Raises
        ------
        TransformError
            If a transform fails on that block.
        SourceError
            If that block cannot be read.
        """
        return find_schema(self._plan.job())

    def columns(self) -> list[str]:
        """Return the names of the columns, in order; see `schema`."""
        return list(self.schema().names)

    def count(self) -> int:
        """Return the number of rows of one epoch.

        If the manifest holds it, nothing is read. With a filter, a ``map_batches(..., preserves_rows=False)``
        or a format that does not store row counts (CSV, JSON, text, TFRecord, WebDataset), the rows are
        counted in one pass over the data on threads, which reads only the columns needed for counting and
        caches nothing.
        """
        return count_rows(self._plan)

    def row_lineage(self, row_ids: Iterable[int]) -> list[RowOrigin]:
        """Return where rows are stored, given their row ids from ``options(row_id_column=...)``.

        Returns
        -------
        list[RowOrigin]
            Path, row group and row of each.

        Raises
        ------
        PlanError
            If a row id does not exist.

        Examples
        --------
        >>> import pyarrow as pa, pyarrow.parquet as pq, windrow
        >>> pq.write_table(pa.table({"x": range(6)}), "numbers.parquet", row_group_size=4)
        >>> ds = windrow.read_parquet("numbers.parquet").options(row_id_column="id")
        >>> row = ds.take()[5]
        >>> row
        {'x': 5, 'id': 5}
        >>> [origin[1:] for origin in ds.row_lineage([row["id"]])]
        [(1, 1)]
        """
        return Lineage(self._job()).origins(row_ids)

    def options(
        self: Self,
        *,
        executor: str | Executor | EllipsisType = ...,
        memory_limit: int | str | EllipsisType | None = ...,
        prefetch_windows: int | EllipsisType = ...,
        on_error: Literal["raise", "skip"] | EllipsisType = ...,
        progress: bool | Literal["auto"] | EllipsisType = ...,
        profile: bool | EllipsisType = ...,
        cache: Literal["memory", "disk"] | EllipsisType | None = ...,
        cache_limit: int | str | EllipsisType | None = ...,
        cache_dir: str | os.PathLike[str] | EllipsisType | None = ...,
        keep_cache: bool | EllipsisType = ...,
        row_id_column: str | EllipsisType | None = ...,
        stall_timeout: float | EllipsisType | None = ...,
    ) -> Self:
        """Set how to run the pipeline; no option changes the order of rows.

        Options that are not given keep their values.

        Parameters
        ----------
        executor
            ``"auto"`` (the default: Ray if it is initialised, else threads),
            ``"threads"`` or ``"ray"``.
        memory_limit
            Maximum bytes held at a time: an integer, or a string with a unit such as
            ``"8GiB"``. None (the default): 80 % of Ray's object store, or half of the
            free memory on threads.
        prefetch_windows
            Number of windows prefetched beyond the one being consumed; 1 by default, 0: no
            prefetching. Memory is reserved for that many windows of the largest size; if the next
            windows are smaller, later windows are prefetched in part within the same memory. On Ray,
            up to two extra windows are prefetched while all windows held together take at most
            192 MiB, if sizes and row counts are known before reading.
        on_error
            ``"raise"`` (the default): the first error ends the job. ``"skip"``: a corrupt block
            (one or more row groups of a file that cannot be decoded) is skipped, that is, it
            counts as having no rows before any row of its window is delivered. At most 8 corrupt
            blocks are skipped; each is reported in a warning, in ``stats().run.corrupt_blocks``
            and, by block number, in checkpoints. All other errors still end the job: a file that
            was deleted or changed, storage that does not respond, and a block that was read
            before and is corrupt now. Rows are counted by reading, as with a filter.
        progress
            Whether to show a progress line; ``"auto"`` (the default): if standard error is a
            terminal, and in notebooks.
        profile
            Whether to measure what tasks spend their time on and what trainers wait for, for
            ``stats()``, ``timeline()`` and metrics; True by default. False: ``stats()`` still has
            all counts, and how long trainers waited.
        cache
            Where to cache decoded blocks (the selected columns, after the filter and before any
            ``map_batches``), so that later epochs do not decode them again: ``"memory"``, within
            the memory limit; ``"disk"``, in memory-mapped files on each machine; None (the
            default): no cache. Blocks that do not fit are read again in each epoch. The cache is
            deleted when the job ends.
        cache_limit
            Maximum bytes of the cache, on disk per machine. None (the default): in memory, 80 %
            of the memory limit that windows leave free; on disk, half of the free space.
        cache_dir
            The folder for ``cache="disk"``, on a local disk; None (the default): the system's
            temporary folder.
        keep_cache
            Whether the files stay in ``cache_dir`` after the job, so that later jobs over the same
            files, columns and filter reuse them. You delete them.
        row_id_column
            Name of an int64 column to add that holds each row's id: its rank among all stored rows
            of all files. `row_lineage` maps ids to path, row group and row. None (the default): no
            column is added.
        stall_timeout
            Seconds that a consumer waits while nothing moves before it raises `StallError`; it warns
            after 60, or after half of a shorter timeout. None (the default): 1,800, or 540 in a process
            where torch.distributed is initialised, because NCCL ends processes after 600 by default.

        Raises
        ------
        PlanError
            If a value is invalid.
        """
        plan = self._plan.configured(
            executor=executor,
            memory_limit=memory_limit,
            prefetch_windows=prefetch_windows,
            on_error=on_error,
            progress=progress,
            profile=profile,
            cache=cache,
            cache_limit=cache_limit,
            cache_dir=cache_dir,
            keep_cache=keep_cache,
            row_id_column=row_id_column,
            stall_timeout=stall_timeout,
        )
        return type(self)(plan)

    def _deliver(self, delivery: Delivery) -> BatchIterator:
        return Passes(self._job(), delivery)


def _columns_html(plan: LogicalPlan) -> list[str]:
    """The columns as a table, as far as they are known without reading."""
    if not _states_schema(plan.read_source):
        return [format_paragraph("Columns: schema() reads a block to find them.")]
    schema = plan.read_source.schema
    changes = bool(plan.maps) or plan.packing is not None
    rows = [(field.name, str(field.type)) for field in schema][:_SHOWN_COLUMNS]
    more = len(schema) - len(rows)
    return [
        format_table(rows, ["column as stored" if changes else "column", "type"]),
        format_paragraph(f"and {more:,} more columns") if more > 0 else "",
        format_paragraph("The steps change columns: schema() has those of the result.") if changes else "",
    ]


def _states_schema(source: Source) -> bool:
    """Whether the schema of a source is known without reading: no transform made its rows."""
    if not isinstance(source, DerivedSource):
        return True
    return all(not parent.maps and _states_schema(parent.source) for parent in source.parents)


@trims_traceback
def count_rows(plan: LogicalPlan) -> int:
    """Return the rows of one epoch, from the manifest or, if it does not state them or they can change, by reading."""
    if plan.mixture is not None:
        raise PlanError(
            "count(): how many rows a mixture has depends on the sizes of steps where shares change; len() of the "
            "batches of an iterator tells their number, if the mixture ends"
        )
    if plan.job().rows_stated:
        return int(plan.source.blocks.rows.sum())
    if plan.packing is not None and not plan.packing.split_documents:
        return _count_padded(plan)
    rows = int(count_blocks_of(plan).sum())
    return rows if plan.packing is None else rows // plan.packing.seq_len


def _count_padded(plan: LogicalPlan) -> int:
    """The sequences of the first epoch, whose documents are packed whole."""
    job, packing = plan.job(), plan.packing
    assert packing is not None
    source = job.source
    context = TaskContext(source.reader, plan.before, packing, seed=plan.seed or 0)
    lengths: list[NDArray[np.int32] | None] = [np.zeros(0, np.int32)] * len(source.blocks.rows)

    def measure(address: BlockAddress) -> pa.Table:
        tokens, lengths[address.number] = context.transform(context.reader.read(address), address)
        return tokens

    count_blocks(measure, source.addresses(range(len(lengths))))
    epoch = plan_epoch(
        source.blocks, cut=job.cut, seed=job.seed, epoch=0, sorts_windows=not job.shuffles_blocks
    )
    parts = cut_parts(epoch, source.blocks.memory_bytes, TASK_BYTES)
    rows = (parts.count_sequence_rows(lengths, packing.seq_len, window) for window in range(epoch.windows))
    return sum(rows) // packing.seq_len


def count_blocks_of(plan: LogicalPlan) -> NDArray[np.int64]:
    """(blocks,) the rows that each block delivers, or with packing its tokens; counted by reading."""
    source = plan.source
    if plan.packing is not None:
        source = plan.read_source
        context = TaskContext(source.reader, plan.before, plan.packing, seed=plan.seed or 0)
    else:
        # only the transforms up to the last one that can change the count have to run
        changing = [at for at, stage in enumerate(plan.before) if not stage.preserves_rows]
        needed = plan.before[: changing[-1] + 1] if changing else ()
        context = TaskContext(source.reader, needed, seed=plan.seed or 0)
        if context.is_plain and isinstance(source, TracingSource):
            return source.count_blocks()
    addresses = source.addresses(range(len(source.blocks.rows)))

    def transform(address: BlockAddress) -> pa.Table:
        return context.transform(context.reader.read(address), address)[0]

    return count_blocks(transform, addresses)
