"""What a Dataset and a DatasetPipeline have in common: a chain that can be read."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from types import EllipsisType
from typing import TYPE_CHECKING, Literal, TypeVar

from windrow.core.source import RowOrigin
from windrow.dataset.count_rows import count_rows
from windrow.dataset.epoch_iteration import Passes
from windrow.dataset.export.export_methods import Convertible
from windrow.dataset.head import find_schema
from windrow.dataset.logical_plan import LogicalPlan
from windrow.dataset.write.write_methods import Writable
from windrow.pipeline.checkpoint.lineage import Lineage
from windrow.pipeline.delivery.iteration_methods import Batches, Deliverable, Delivery
from windrow.pipeline.plan.job import Job

if TYPE_CHECKING:
    import pyarrow as pa

    from windrow.pipeline.executors.base import Executor

__all__ = ["Readable"]

Self = TypeVar("Self", bound="Readable")


@dataclass(frozen=True, repr=False)
class Readable(Deliverable, Writable, Convertible):
    """A description of data that can be read by the calling process; it holds nothing else."""

    _plan: LogicalPlan

    def __repr__(self) -> str:
        return f"{type(self).__name__}\n  {self._plan}"

    @abstractmethod
    def _job(self) -> Job:
        """What ``iter_*`` reads."""

    def schema(self) -> pa.Schema:
        """Return the Arrow schema of the rows.

        Without transforms it is known. With transforms, the first block that has rows
        is read and passed through them on the spot; where there are no rows at all, the
        schema of the files is returned.

        Raises
        ------
        TransformError
            If a transform fails on that block.
        SourceError
            If that block cannot be read.
        """
        return find_schema(self._plan)

    def columns(self) -> list[str]:
        """Return the names of the columns, in order; see `schema`."""
        return list(self.schema().names)

    def count(self) -> int:
        """Return the rows of one epoch.

        The manifest tells them, and nothing is read. Where a filter or a
        ``map_batches(..., preserves_rows=False)`` drops rows, they are counted in a pass
        over the data on threads, which reads no more columns than the counting needs
        and keeps nothing.
        """
        return count_rows(self._plan)

    def row_lineage(self, row_ids: Iterable[int]) -> list[RowOrigin]:
        """Tell where rows are stored, given by the numbers of ``options(row_id=...)``.

        Returns
        -------
        list[RowOrigin]
            Path, row group and row of each.

        Raises
        ------
        PlanError
            If there is no such row.

        Examples
        --------
        >>> import pyarrow as pa, pyarrow.parquet as pq, windrow
        >>> pq.write_table(pa.table({"x": range(6)}), "numbers.parquet", row_group_size=4)
        >>> ds = windrow.read_parquet("numbers.parquet").options(row_id="id")
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
        cache: Literal["memory", "disk"] | EllipsisType | None = ...,
        cache_limit: int | str | EllipsisType | None = ...,
        cache_dir: str | os.PathLike[str] | EllipsisType | None = ...,
        keep_cache: bool | EllipsisType = ...,
        row_id: str | EllipsisType | None = ...,
    ) -> Self:
        """Return the same chain, run in another way; the order of rows never changes.

        What is not given stays as it is.

        Parameters
        ----------
        executor
            ``"auto"`` (the default: Ray where it is initialised, else threads),
            ``"threads"`` or ``"ray"``.
        memory_limit
            Bytes that may be held at once: an integer, or a string with a unit such as
            ``"8GiB"``. None (the default): 80 % of Ray's object store, or half of the
            free memory on threads.
        prefetch_windows
            Windows prepared beyond the one that is consumed; 1 by default. Where these are smaller
            than the largest ones, parts of the windows behind them too, within the memory that as
            many of the largest would take; on Ray, of windows of which more take no more than
            192 MiB, two more where their sizes and rows are known before they are read. 0: none.
        on_error
            ``"raise"`` (the default): the first error ends the run. ``"skip"``: a block (one
            or more row groups of a file) that is corrupt, and so cannot be decoded, is left
            out: it counts as having no rows, from before any row of its window is delivered.
            A warning names it, ``stats().run.corrupt_blocks`` tells all, and saved states name
            them by number; more than 8 are an error. All other errors end the run: a file
            that is gone or was changed, a store that does not answer, and a block that was
            read before and is corrupt now. Rows are counted by reading, as with a filter.
        progress
            Whether to show a progress line; ``"auto"`` (the default): where standard
            error is a terminal.
        cache
            Where decoded blocks (the selected columns, after the filter and before any
            ``map_batches``) are kept, so that later epochs need not decode them again:
            ``"memory"``, within the memory limit; ``"disk"``, in files of each machine
            that are mapped into memory; None (the default): nowhere. What does not fit is
            read again each time. It ends with the run.
        cache_limit
            Bytes that the cache may take, on disk those of each machine. None (the
            default): in memory 80 % of what windows leave of the memory limit, on disk
            half of what is free.
        cache_dir
            The folder for ``cache="disk"``, a local disk; None (the default): the system's
            folder for temporary files.
        keep_cache
            Whether the files stay in ``cache_dir`` after the run, and serve later runs
            over the same files, columns and filter. You remove them.
        row_id
            The name of a column to add, int64: each row's number as stored, its rank among all
            rows of all files. `row_lineage` tells path, row group and row. None (the default):
            none is added.

        Raises
        ------
        PlanError
            For any other value.
        """
        changes = {
            "executor": executor,
            "memory_limit": memory_limit,
            "prefetch_windows": prefetch_windows,
            "on_error": on_error,
            "progress": progress,
            "cache": cache,
            "cache_limit": cache_limit,
            "cache_dir": cache_dir,
            "keep_cache": keep_cache,
            "row_id": row_id,
        }
        return type(self)(self._plan.configured(**changes))

    def _deliver(self, delivery: Delivery) -> Batches:
        return Passes(self._job(), delivery)
