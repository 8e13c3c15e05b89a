"""Dataset, the lazy description of stored data and its transforms; DatasetPipeline, that of its epochs and windows.

Each hands out the other: `Dataset.window` a pipeline, `DatasetPipeline.iter_datasets` datasets.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, NoReturn, TypeVar

import numpy as np
import pyarrow as pa

from windrow.core.chosen_rows import take_rows
from windrow.core.errors import PlanError
from windrow.core.integers import check_count
from windrow.dataset.argument_checks import check_hints, check_table
from windrow.dataset.epoch_iteration import read_windows
from windrow.dataset.logical_plan import LogicalPlan, tables_plan
from windrow.dataset.operations.combine_methods import CombineMethods
from windrow.dataset.operations.distinct_methods import DistinctMethods
from windrow.dataset.operations.group_methods import GroupMethods
from windrow.dataset.operations.order_methods import OrderMethods
from windrow.dataset.shard_methods import ShardMethods
from windrow.dataset.window_methods import WindowMethods, join_datasets
from windrow.dataset.write.write_job import WriteRequest
from windrow.dataset.write.write_plan import write_epochs, write_parts
from windrow.io.catalog.file_source import FileSource
from windrow.io.sinks.written_manifest import WriteResult
from windrow.io.spark.spark_staging import delete_folder
from windrow.pipeline.delivery.batch_formats import BatchFormat, check_format, convert, rows
from windrow.pipeline.delivery.boosting import BoostingMethods
from windrow.pipeline.plan.head import read_head
from windrow.pipeline.plan.job import Job
from windrow.pipeline.shard.open_shards import open_shards
from windrow.pipeline.shard.shard import Shard
from windrow.shuffle.order.shard_assignment import Equal, check_equal

P = TypeVar("P", bound="DatasetPipeline")
# of the datasets of windows; as that of from_arrow()
_WINDOW_BLOCK_BYTES = 64 * 2**20


@dataclass(frozen=True, repr=False)
class Dataset(CombineMethods, OrderMethods, GroupMethods, DistinctMethods, BoostingMethods):
    """Stored data and the transforms to apply to it.

    Create one with a ``read_*`` or ``from_*`` function, such as `windrow.read_parquet`. A Dataset
    is lazy and immutable: it holds no data, can be pickled and can be read any number of times.
    Methods that change something return a new one. Methods that read rows (``take``, ``show``,
    ``iter_*`` ...) run in the calling process and never start Ray.

    Examples
    --------
    >>> import pyarrow as pa, pyarrow.parquet as pq, windrow
    >>> pq.write_table(pa.table({"x": range(6), "y": [0.5] * 6}), "numbers.parquet", row_group_size=2)
    >>> ds = windrow.read_parquet("numbers.parquet", columns=["x"])
    >>> ds.count(), ds.columns(), ds.num_blocks()
    (6, ['x'], 3)
    >>> doubled = ds.map_batches(lambda batch: {"x": batch["x"] * 2})
    >>> doubled.take(3)
    [{'x': 0}, {'x': 2}, {'x': 4}]
    """

    def window(
        self, *, blocks_per_window: int | None = None, bytes_per_window: int | str | None = None
    ) -> DatasetPipeline:
        """Cut each epoch into windows, the groups of blocks that are shuffled together.

        Parameters
        ----------
        blocks_per_window
            Blocks per window; the last window can have fewer.
        bytes_per_window
            Approximate decoded bytes per window: an integer, or a string with a unit such
            as ``"8GiB"``. Default if neither size is given: those of 50 blocks, from 1 to 4 GiB.

        Raises
        ------
        PlanError
            If both sizes are given, or a size is invalid.

        Examples
        --------
        >>> import pyarrow as pa, pyarrow.parquet as pq, windrow
        >>> pq.write_table(pa.table({"x": range(6)}), "numbers.parquet")
        >>> windrow.read_parquet("numbers.parquet").window(bytes_per_window="8GiB")
        DatasetPipeline
          Parquet('...': 1 fragment, 1 row group; 1 of 1 column)
          .window(bytes_per_window='8.0GiB')
        """
        return DatasetPipeline(self._plan.windowed(blocks_per_window, bytes_per_window))

    def repeat(self, times: int | None = None) -> DatasetPipeline:
        """Deliver the data several times.

        Without ``window``, a shuffle treats the whole dataset as one window. Opening such a
        pipeline raises before anything is read if that window does not fit into memory.

        Parameters
        ----------
        times
            Number of epochs; None: repeat forever.

        Raises
        ------
        PlanError
            If ``times`` is not an integer of 1 or more.
        """
        return DatasetPipeline(self._plan.repeated(times))

    def random_shuffle_each_window(self, *, seed: int | None = None) -> NoReturn:
        """Raise: only a DatasetPipeline, as ``window`` and ``repeat`` return it, has windows to shuffle.

        Raises
        ------
        PlanError
            Always.
        """
        raise PlanError(
            "a Dataset has no windows to shuffle: call window() or repeat() first, as in "
            "ds.window().repeat(10).random_shuffle_each_window()"
        )

    def split(
        self, n: int, *, equal: Equal = False, locality_hints: Sequence[Any] | None = None
    ) -> list[Shard]:
        """Split the rows, in stored order, into ``n`` shards; for validation sets.

        Each call of a shard's ``iter_*`` starts one pass on demand. Nothing is held in memory
        between passes.

        Parameters
        ----------
        n
            Number of shards.
        equal
            How to treat a last step that is not full: False gives the first shards one row
            more, True drops at most n - 1 rows, ``"pad"`` repeats at most n - 1 rows.
        locality_hints
            (n,) where each shard will be read: an actor handle, a node id, or None.

        Raises
        ------
        PlanError
            If an argument is invalid.
        """
        shards = check_count(n, "n")
        hints = check_hints(locality_hints, shards)
        job = replace(self._plan.job(), epochs=None, on_demand=True)
        return open_shards(job, shards, equal=check_equal(equal), locality_hints=hints)

    def num_blocks(self) -> int:
        """Return the number of blocks; a block is a group of adjacent row groups, read together."""
        return len(self._plan.source.blocks.rows)

    def size_bytes(self) -> int:
        """Return the decoded bytes of the selected columns, before transforms, according to the footers.

        Exact for fixed-width columns; the encoded size for others.
        """
        return int(self._plan.source.blocks.decoded_bytes.sum())

    def take(self, limit: int = 20) -> list[dict[str, Any]]:
        """Return the first rows as dicts of Python values, reading only the blocks that hold them.

        Raises
        ------
        PlanError
            If ``limit`` is not an integer of 1 or more.
        """
        table = read_head(self._plan.read_source, self._plan.maps, check_count(limit, "limit"))
        return [row for batch in table.to_batches() for row in rows(batch)]

    def take_batch(self, batch_size: int = 20, *, batch_format: BatchFormat = "numpy") -> Any:
        """Return the first rows as one batch, reading only the blocks that hold them.

        Parameters
        ----------
        batch_size
            Number of rows; a smaller dataset returns fewer.
        batch_format
            ``"numpy"``: a dict of arrays, (rows, ...) each; ``"pandas"``: a DataFrame;
            ``"pyarrow"``: a Table.

        Raises
        ------
        PlanError
            If an argument is invalid.

        Examples
        --------
        >>> import pyarrow as pa, pyarrow.parquet as pq, windrow
        >>> pq.write_table(pa.table({"x": range(6)}), "numbers.parquet")
        >>> windrow.read_parquet("numbers.parquet").take_batch(4)
        {'x': array([0, 1, 2, 3])}
        """
        check_format(batch_format)
        table = read_head(self._plan.read_source, self._plan.maps, check_count(batch_size, "batch_size"))
        # take() copies; a slice would keep its whole block in memory
        table = take_rows(table, np.arange(table.num_rows)).combine_chunks()
        columns = [column.combine_chunks() for column in table.columns]
        batch = pa.RecordBatch.from_arrays(columns, schema=table.schema)
        return convert(batch, batch_format, writable=True)

    def show(self, limit: int = 20) -> None:
        """Print the first rows, one per line, reading only the blocks that hold them.

        Raises
        ------
        PlanError
            If ``limit`` is not an integer of 1 or more.

        Examples
        --------
        >>> import pyarrow as pa, pyarrow.parquet as pq, windrow
        >>> pq.write_table(pa.table({"x": range(6)}), "numbers.parquet")
        >>> windrow.read_parquet("numbers.parquet").show(2)
        {'x': 0}
        {'x': 1}
        """
        for row in self.take(limit):
            print(row)

    def save_manifest(self, path: str | os.PathLike[str]) -> None:
        """Write the manifest (files, schema and row groups) to a local file, for ``read_parquet(manifest=)``.

        Raises
        ------
        PlanError
            If the dataset does not read files.
        SourceError
            If the manifest cannot be written.

        Examples
        --------
        >>> import pyarrow as pa, pyarrow.parquet as pq, windrow
        >>> pq.write_table(pa.table({"x": range(6)}), "numbers.parquet")
        >>> windrow.read_parquet("numbers.parquet").save_manifest("numbers.manifest")
        >>> windrow.read_parquet("numbers.parquet", manifest="numbers.manifest").count()
        6
        """
        source = self._plan.source
        if not isinstance(source, FileSource):
            raise PlanError(f"{source!r} has no manifest to save: only datasets of files have one")
        source.save_manifest(path)

    def delete_staged(self) -> None:
        """Delete the files that `windrow.from_spark` staged for this dataset; every other user loses them too.

        Raises
        ------
        PlanError
            If the dataset does not read staged files, or they have been deleted already.
        SourceError
            If the files cannot be deleted.

        Examples
        --------
        >>> ds = windrow.from_spark(df, cache_dir="s3a://bucket/stages", keep=True)  # doctest: +SKIP
        >>> ds.delete_staged()  # doctest: +SKIP
        """
        source = self._plan.source
        if not isinstance(source, FileSource):
            raise PlanError(f"{source!r} does not read files that from_spark() staged")
        delete_folder(source.files)

    def _write(self, request: WriteRequest) -> WriteResult:
        return write_parts(self._plan, request)

    def _repeats_passes(self) -> bool:
        return True

    def _row_count(self) -> int:
        return self.count()

    def _job(self) -> Job:
        job = self._plan.job()
        options = job.options
        if isinstance(options.executor, str):
            options = replace(options, executor="threads")
        return replace(job, options=options, on_demand=True)

    def _describe_missing(self, name: str) -> str | None:
        return (
            "call it on the pipeline, behind window() or repeat()" if hasattr(DatasetPipeline, name) else None
        )


@dataclass(frozen=True, repr=False)
class DatasetPipeline(WindowMethods, ShardMethods):
    """Epochs of a dataset, cut into windows and shuffled.

    Create one with ``Dataset.window`` or ``Dataset.repeat``. A DatasetPipeline is lazy and
    immutable: it holds no data, can be pickled and can be read any number of times. Methods that
    change something return a new one. The order of ``window``, ``repeat`` and
    ``random_shuffle_each_window`` does not matter. Without a shuffle, every epoch delivers the
    rows in stored order.

    Examples
    --------
    >>> import pyarrow as pa, pyarrow.parquet as pq, windrow
    >>> pq.write_table(pa.table({"x": range(6)}), "numbers.parquet", row_group_size=2)
    >>> ds = windrow.read_parquet("numbers.parquet")
    >>> pipe = ds.window(bytes_per_window="1GiB").repeat(2).random_shuffle_each_window(seed=7)
    >>> for epoch in pipe.iter_epochs():
    ...     print(epoch.number, sorted(row["x"] for row in epoch.iter_rows()))
    0 [0, 1, 2, 3, 4, 5]
    1 [0, 1, 2, 3, 4, 5]
    """

    @classmethod
    def from_iterable(cls: type[P], datasets: Iterable[Dataset | Callable[[], Dataset]]) -> P:
        """Return a pipeline in which each dataset is a window, in this order, in every epoch.

        So the order of the datasets can be a curriculum. A shuffle mixes the rows within each of them.

        Parameters
        ----------
        datasets
            Datasets with the same columns and types, or functions that return one, each of which is called now.
            Options are those of the first one.

        Raises
        ------
        PlanError
            If there are none, or something else is among them.
        SourceError
            If columns or types do not unify; the message names the column.

        Examples
        --------
        >>> import windrow
        >>> pipe = windrow.DatasetPipeline.from_iterable([windrow.range(2), lambda: windrow.range(3)])
        >>> [row["id"] for row in pipe.iter_rows()]
        [0, 1, 0, 1, 2]
        """
        return cls(join_datasets(datasets))

    def window(
        self, *, blocks_per_window: int | None = None, bytes_per_window: int | str | None = None
    ) -> DatasetPipeline:
        """Cut each epoch into windows, as `Dataset.window` does; allowed once per pipeline.

        Raises
        ------
        PlanError
            If the pipeline already has a window, both sizes are given, or a size is invalid.
        """
        return DatasetPipeline(self._plan.windowed(blocks_per_window, bytes_per_window))

    def repeat(self, times: int | None = None) -> DatasetPipeline:
        """Repeat all epochs so far ``times`` times; repeats multiply.

        None: repeat forever. Each epoch has its own shuffled order.

        Raises
        ------
        PlanError
            If ``times`` is not an integer of 1 or more.
        """
        return DatasetPipeline(self._plan.repeated(times))

    def iter_datasets(self) -> Iterator[Dataset]:
        """Iterate over the windows of all epochs as datasets in memory: the rows of each as they are delivered.

        Windows without rows are left out. While one is read, the next ones are prepared.

        Raises
        ------
        PlanError
            If the pipeline packs: sequences go over the borders of windows.

        Examples
        --------
        >>> import windrow
        >>> pipe = windrow.range(6).repartition(3).window(blocks_per_window=2)
        >>> [dataset.count() for dataset in pipe.iter_datasets()]
        [4, 2]
        """
        if self._plan.packing is not None:
            raise PlanError(
                f"iter_datasets() comes after {self._plan.packing}, whose sequences go over windows"
            )
        return _read_datasets(self._plan)

    def _write(self, request: WriteRequest) -> WriteResult:
        return write_epochs(self._plan, request)

    def _describe_missing(self, name: str) -> str | None:
        return "call it on the dataset, before window() or repeat()" if hasattr(Dataset, name) else None


def _read_datasets(plan: LogicalPlan) -> Iterator[Dataset]:
    with closing(read_windows(plan.job())) as windows:
        for window in windows:
            yield Dataset(tables_plan([check_table(window, "from_arrow")], "from_arrow", _WINDOW_BLOCK_BYTES))
