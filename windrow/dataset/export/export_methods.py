"""The ``to_*`` methods shared by Dataset and DatasetPipeline."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.optional_dependencies import require
from windrow.dataset.export.conversions import (
    check_fits_memory,
    collect,
    collect_frame,
    collect_numpy,
    stream_tables,
    to_dask,
    to_huggingface,
    to_spark,
)
from windrow.dataset.logical_plan import LogicalPlan
from windrow.pipeline.plan.head import find_schema
from windrow.pipeline.plan.job import Job

if TYPE_CHECKING:
    import pandas as pd


class Convertible(ABC):
    """Conversion of the rows of one pass to other libraries' data structures.

    A Dataset converts its rows in stored order; a pipeline converts its first epoch in that epoch's order.
    """

    _plan: LogicalPlan

    @abstractmethod
    def _job(self) -> Job:
        """The job that reads the rows."""

    def to_arrow(self, limit: int | None = None) -> pa.Table:
        """Return the rows of one pass as an Arrow Table, in memory.

        Parameters
        ----------
        limit
            Number of first rows to return; None: all rows.

        Raises
        ------
        PlanError
            Without a limit, if the estimated size of the rows exceeds the free memory; the message
            names both.

        Examples
        --------
        >>> import windrow
        >>> windrow.range(1000).to_arrow(limit=3).to_pydict()
        {'id': [0, 1, 2]}
        """
        return collect(self._plan, self._job(), limit, "to_arrow()")

    def to_pandas(self, limit: int | None = None) -> pd.DataFrame:
        """Return the rows of one pass as a pandas DataFrame, in memory.

        Columns have the types of ``batch_format="pandas"``: integers and booleans with nulls have
        pandas' nullable types, tensors are objects.

        Parameters
        ----------
        limit
            Number of first rows to return; None: all rows.

        Raises
        ------
        PlanError
            Without a limit, if the rows as Arrow plus the rows as pandas exceed the free memory; the
            message names the memory needed and the memory free.

        Examples
        --------
        >>> import windrow
        >>> windrow.range(3).to_pandas()
           id
        0   0
        1   1
        2   2
        """
        return collect_frame(self._plan, self._job(), limit, "to_pandas()")

    def to_numpy(self, limit: int | None = None) -> dict[str, NDArray[Any]]:
        """Return the rows of one pass as a dict of writable arrays, (rows, ...) each, in memory.

        Parameters
        ----------
        limit
            Number of first rows to return; None: all rows.

        Raises
        ------
        PlanError
            Without a limit, if the rows as Arrow plus the rows as NumPy exceed the free memory.

        Examples
        --------
        >>> import windrow
        >>> windrow.range(3).to_numpy()
        {'id': array([0, 1, 2])}
        """
        return collect_numpy(self._plan, self._job(), limit, "to_numpy()")

    def to_dask(self) -> Any:
        """Return the rows of one pass as a dask DataFrame; needs the extra ``dask``.

        Without a shuffle, each block is a partition: dask's workers read and transform it when
        dask computes it. Shuffled rows are read into memory now. Integers and booleans that can
        have nulls have pandas' nullable types.

        Raises
        ------
        PlanError
            If dask is not installed, or shuffled rows would exceed the free memory.

        Examples
        --------
        >>> import windrow
        >>> frame = windrow.range(10, block_rows=4).to_dask()
        >>> frame.npartitions, int(frame["id"].sum().compute())
        (3, 45)
        """
        return to_dask(self._plan, self._job())

    def to_ray(self) -> Any:
        """Return the rows of one pass as a ``ray.data.Dataset``; needs the extras ``ray`` and ``pandas``.

        Without a shuffle, the result is lazy: Ray tasks read and transform the blocks. Shuffled
        rows are read into Ray's object store now.

        Raises
        ------
        PlanError
            If Ray or pandas is not installed, or shuffled rows would not fit into its object store.

        Examples
        --------
        >>> import windrow
        >>> windrow.range(6).to_ray().count()  # doctest: +SKIP
        6
        """
        require("ray.data", "ray,pandas", "to_ray()")
        from windrow.pipeline.executors.ray.data import ray_dataset as output

        plan = self._plan
        if plan.delivers_blocks:
            return output.read_lazily(plan.read_source, plan.maps)
        check_fits_memory(plan, "to_ray()", free_bytes=output.object_store_bytes())
        job = self._job()
        return output.put_tables(stream_tables(job), lambda: find_schema(job))

    def to_huggingface(self, limit: int | None = None) -> Any:
        """Return the rows of one pass as a ``datasets.Dataset``, in memory; needs the extra ``huggingface``.

        Tensors become nested fixed-size lists; dictionary-encoded columns are decoded.

        Parameters
        ----------
        limit
            Number of first rows to return; None: all rows.

        Raises
        ------
        PlanError
            If ``datasets`` is not installed or does not support a column's type, or if, without a
            limit, the rows would exceed the free memory.

        Examples
        --------
        >>> import windrow
        >>> windrow.range(3).to_huggingface()[1]
        {'id': 1}
        """
        return to_huggingface(self._plan, self._job(), limit)

    def to_tf(
        self,
        *,
        feature_columns: Sequence[str] | None = None,
        label_column: str | None = None,
        batch_size: int = 256,
        drop_last: bool = False,
        prefetch_batches: int = 1,
    ) -> Any:
        """Return batches as a ``tf.data.Dataset`` with an element spec; needs the extra ``tensorflow``.

        Each iteration over it reads the data again: all epochs of a pipeline in turn. Numbers and
        booleans become (rows,) tensors, fixed-size lists and fixed-shape tensors (rows, ...),
        text and binary values ``tf.string``.

        Parameters
        ----------
        feature_columns
            Columns to deliver; None: all but the label.
        label_column
            The label column: elements are then (features, label). None: elements are dicts of tensors.
        batch_size, drop_last, prefetch_batches
            As for `iter_batches`.

        Raises
        ------
        PlanError
            If TensorFlow is not installed, or a column cannot become a tensor; the message names it.

        Examples
        --------
        >>> import windrow
        >>> for batch in windrow.range(3).to_tf(batch_size=2):  # doctest: +SKIP
        ...     print(batch["id"].numpy())
        [0 1]
        [2]
        """
        from windrow.pipeline.loaders.to_tf import to_tf

        rows: Any = self
        return to_tf(
            lambda: rows.iter_batches(batch_size, drop_last=drop_last, prefetch_batches=prefetch_batches),
            self._job(),
            feature_columns=feature_columns,
            label_column=label_column,
        )

    def to_spark(
        self,
        spark: Any,
        *,
        cache_dir: str | os.PathLike[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return the rows of one pass as a Spark DataFrame; needs the extra ``spark``.

        The rows are staged as Parquet files, block by block, which Spark reads; the files are
        deleted when this process ends. Spark does not guarantee an order of rows. Nanoseconds
        become microseconds, half floats become floats, fixed-size lists and tensors become arrays,
        and unsigned integers become wider types.

        Parameters
        ----------
        spark
            A ``SparkSession``, not one of Spark Connect.
        cache_dir
            The directory for the staged files: a path or URL that is valid for both Spark and this
            process. None: the system's temporary folder, for a Spark that runs on this machine.
        storage_options
            fsspec options to open ``cache_dir``; Spark uses its own configuration.

        Raises
        ------
        PlanError
            If PySpark is not installed, or Spark has no type for a column; nothing is written then.
        SourceError
            If the files cannot be written, or Spark cannot read them.

        Examples
        --------
        >>> import windrow
        >>> windrow.range(6).to_spark(spark).count()  # doctest: +SKIP
        6
        """
        return to_spark(self._plan, spark, cache_dir, storage_options)
