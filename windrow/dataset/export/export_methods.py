"""The ``to_*`` methods that a Dataset and a DatasetPipeline share."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from numpy.typing import NDArray

from windrow.dataset.export.collect import collect, collect_frame, collect_numpy
from windrow.dataset.logical_plan import LogicalPlan
from windrow.pipeline.plan.job import Job

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Convertible"]


class Convertible(ABC):
    """Rows that can be had in the form of other libraries, one pass over them.

    A Dataset gives its rows in stored order, a pipeline those of its first epoch in their order.
    """

    _plan: LogicalPlan

    @abstractmethod
    def _job(self) -> Job:
        """What is read."""

    def to_arrow(self, limit: int | None = None) -> pa.Table:
        """Return the rows of one pass as an Arrow Table, in memory.

        Parameters
        ----------
        limit
            The first rows only; None: all.

        Raises
        ------
        PlanError
            Without a limit, if the rows would take more memory than is free, as far as the
            source tells; says how much.

        Examples
        --------
        >>> import windrow
        >>> windrow.range(1000).to_arrow(limit=3).to_pydict()
        {'id': [0, 1, 2]}
        """
        return collect(self._plan, self._job(), limit, "to_arrow()")

    def to_pandas(self, limit: int | None = None) -> pd.DataFrame:
        """Return the rows of one pass as a pandas DataFrame, in memory.

        Columns are as in batches of ``batch_format="pandas"``: integers and booleans with nulls
        have pandas' nullable types, tensors are objects.

        Parameters
        ----------
        limit
            The first rows only; None: all.

        Raises
        ------
        PlanError
            Without a limit, if twice the rows, as Arrow and as pandas, would take more memory
            than is free; says how much.

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
            The first rows only; None: all.

        Raises
        ------
        PlanError
            Without a limit, if twice the rows would take more memory than is free.

        Examples
        --------
        >>> import windrow
        >>> windrow.range(3).to_numpy()
        {'id': array([0, 1, 2])}
        """
        return collect_numpy(self._plan, self._job(), limit, "to_numpy()")

    def to_dask(self) -> Any:
        """Return the rows of one pass as a dask DataFrame; needs the extra ``dask``.

        Without a shuffle, each block is a partition: it is read, and passes through the
        transforms, when dask computes it, on dask's workers. Shuffled rows are read now, into
        memory. Integers and booleans that may have nulls have pandas' nullable types.

        Raises
        ------
        PlanError
            If dask is not installed, or shuffled rows would take more memory than is free.

        Examples
        --------
        >>> import windrow
        >>> frame = windrow.range(10, block_rows=4).to_dask()
        >>> frame.npartitions, int(frame["id"].sum().compute())
        (3, 45)
        """
        from windrow.dataset.export.to_dask import to_dask

        return to_dask(self._plan, self._job())

    def to_ray(self) -> Any:
        """Return the rows of one pass as a ``ray.data.Dataset``; needs the extra ``ray``.

        Without a shuffle, nothing is read before Ray reads it: blocks are read, and pass through
        the transforms, in Ray's tasks. Shuffled rows are read now, into Ray's object store.

        Raises
        ------
        PlanError
            If Ray is not installed, or shuffled rows would not fit into its object store.

        Examples
        --------
        >>> import windrow
        >>> windrow.range(6).to_ray().count()  # doctest: +SKIP
        6
        """
        from windrow.dataset.export.to_ray import to_ray

        return to_ray(self._plan, self._job())

    def to_huggingface(self, limit: int | None = None) -> Any:
        """Return the rows of one pass as a ``datasets.Dataset``, in memory; needs the extra ``huggingface``.

        Tensors become nested lists of fixed length, dictionaries their values.

        Parameters
        ----------
        limit
            The first rows only; None: all.

        Raises
        ------
        PlanError
            If ``datasets`` is not installed, a column has a type that it does not know or,
            without a limit, the rows would take more memory than is free.

        Examples
        --------
        >>> import windrow
        >>> windrow.range(3).to_huggingface()[1]
        {'id': 1}
        """
        from windrow.dataset.export.to_huggingface import to_huggingface

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

        Each iteration over it is a new pass, over all epochs of a pipeline in turn. Numbers and
        booleans become (rows,) tensors, fixed-size lists and fixed-shape tensors (rows, ...),
        text and binary values ``tf.string``.

        Parameters
        ----------
        feature_columns
            What to deliver; None: all but the label.
        label_column
            The label: elements are (features, label) then, and dicts of tensors without one.
        batch_size, drop_last, prefetch_batches
            As for `iter_batches`.

        Raises
        ------
        PlanError
            If TensorFlow is not installed, or for columns that no tensor holds, naming them.

        Examples
        --------
        >>> import windrow
        >>> for batch in windrow.range(3).to_tf(batch_size=2):  # doctest: +SKIP
        ...     print(batch["id"].numpy())
        [0 1]
        [2]
        """
        from windrow.dataset.export.to_tf import TfRequest, to_tf

        request = TfRequest(feature_columns, label_column, batch_size, drop_last, prefetch_batches)
        return to_tf(self, self._plan, request)

    def to_spark(
        self,
        spark: Any,
        *,
        cache_dir: str | os.PathLike[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return the rows of one pass as a Spark DataFrame; needs the extra ``spark``.

        They are written as Parquet files, block by block, and Spark reads these; they go when
        this process ends. Spark promises no order of rows. Nanoseconds become microseconds, half floats
        floats, fixed-size lists and tensors arrays, and unsigned integers wider types.

        Parameters
        ----------
        spark
            A plain ``SparkSession``.
        cache_dir
            The directory to write below: a path or URL that Spark and this process see at the same
            place. None: the system's folder for temporary files, where Spark runs on this machine.
        storage_options
            What fsspec needs to open ``cache_dir``; Spark has its own configuration.

        Raises
        ------
        PlanError
            If PySpark is not installed, or Spark has no type for a column, before anything is written.
        SourceError
            If the files cannot be written, or Spark cannot read them.

        Examples
        --------
        >>> import windrow
        >>> windrow.range(6).to_spark(spark).count()  # doctest: +SKIP
        6
        """
        from windrow.dataset.export.to_spark import to_spark

        return to_spark(self._plan, spark, cache_dir, storage_options)
