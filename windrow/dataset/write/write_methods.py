"""The ``write_*`` methods that a Dataset and a DatasetPipeline share."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from windrow.dataset.write.write_job import WriteRequest
from windrow.io.sinks.arrow_sink import IpcSink
from windrow.io.sinks.commit import Mode
from windrow.io.sinks.csv_sink import CsvSink
from windrow.io.sinks.json_sink import JsonSink
from windrow.io.sinks.numpy_sink import NumpySink
from windrow.io.sinks.parquet_sink import ParquetSink
from windrow.io.sinks.tfrecord_sink import TfRecordSink
from windrow.io.sinks.webdataset_sink import WebDatasetSink
from windrow.io.sinks.written_manifest import WriteResult

__all__ = ["Writable"]


class Writable(ABC):
    """Rows that can be written to files.

    A Dataset is written in parallel, by threads or Ray tasks as ``options(executor=)`` says: one file for
    each block, or files of ``target_file_bytes``. A pipeline is written as the stream of each epoch, in
    its order, into directories ``epoch=<number>``. A file appears under its name once it is whole, and a
    task that is run again writes the same files. A manifest, ``_manifest-<job>.json``, is written after all.
    """

    @abstractmethod
    def _write(self, request: WriteRequest) -> WriteResult:
        """Write what is asked for."""

    def write_parquet(
        self,
        path: str | os.PathLike[str],
        *,
        compression: str | None = "snappy",
        partition_by: str | Sequence[str] = (),
        target_file_bytes: int | str | None = None,
        mode: Mode = "error",
        filesystem: Any = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> WriteResult:
        """Write Parquet files.

        Parameters
        ----------
        path
            The directory, on local disk or a URL that fsspec knows (``s3://`` ...).
        compression
            ``"snappy"``, ``"gzip"``, ``"brotli"``, ``"zstd"``, ``"lz4"`` or None.
        partition_by
            Columns whose values become directories, ``column=value``, instead of standing in the files.
        target_file_bytes
            Bytes of the rows of a file, about, as they are in memory: an integer, or a string with a unit.
            None: a file for each block; in pipelines ``"128MiB"``.
        mode
            What happens where there are files: ``"error"`` refuses; ``"append"`` adds to them;
            ``"overwrite"`` removes them, once the new ones are written.
        filesystem
            An fsspec or ``pyarrow.fs`` filesystem that ``path`` is meant for.
        storage_options
            What fsspec needs to open the URL.

        Returns
        -------
        WriteResult
            The files, and how many rows and bytes they have.

        Raises
        ------
        PlanError
            Before anything is written: for a column of a type that the format cannot carry, files that
            are there already, or a pipeline that never ends.
        SourceError, TransformError
            If reading, writing or a transform fails; nothing is left of what was written.

        Examples
        --------
        >>> import pyarrow as pa, pyarrow.parquet as pq, windrow
        >>> pq.write_table(pa.table({"x": [1, 2], "y": ["a", "b"]}), "numbers.parquet")
        >>> ds = windrow.read_parquet("numbers.parquet")
        >>> written = ds.write_parquet("as-parquet", partition_by="y", mode="overwrite")
        >>> [(file.path.partition("/")[0], file.rows) for file in written.files]
        [('y=a', 1), ('y=b', 1)]
        >>> windrow.read_parquet("as-parquet").take()
        [{'x': 1, 'y': 'a'}, {'x': 2, 'y': 'b'}]
        """
        return self._write(
            WriteRequest(
                ParquetSink(compression),
                path,
                partition_by,
                target_file_bytes,
                mode,
                filesystem,
                storage_options,
            )
        )

    def write_csv(
        self,
        path: str | os.PathLike[str],
        *,
        compression: str | None = None,
        delimiter: str = ",",
        partition_by: str | Sequence[str] = (),
        target_file_bytes: int | str | None = None,
        mode: Mode = "error",
        filesystem: Any = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> WriteResult:
        """Write CSV files: a header, quoted text, and nothing for null.

        Parameters
        ----------
        compression
            ``"gzip"``, ``"bz2"``, ``"zstd"``, ``"lz4"`` or None.
        delimiter
            What stands between columns: one character.
        partition_by, target_file_bytes, mode, filesystem, storage_options
            As for `write_parquet`.

        Raises
        ------
        PlanError, SourceError, TransformError
            As for `write_parquet`.

        Examples
        --------
        >>> import pyarrow as pa, pyarrow.parquet as pq, windrow
        >>> pq.write_table(pa.table({"x": [1, 2], "y": ["a", "b"]}), "numbers.parquet")
        >>> ds = windrow.read_parquet("numbers.parquet")
        >>> import pathlib
        >>> written = ds.write_csv("as-csv", mode="overwrite")
        >>> print(pathlib.Path(written.paths[0]).read_text())
        "x","y"
        1,"a"
        2,"b"
        """
        return self._write(
            WriteRequest(
                CsvSink(compression, delimiter),
                path,
                partition_by,
                target_file_bytes,
                mode,
                filesystem,
                storage_options,
            )
        )

    def write_json(
        self,
        path: str | os.PathLike[str],
        *,
        compression: str | None = None,
        partition_by: str | Sequence[str] = (),
        target_file_bytes: int | str | None = None,
        mode: Mode = "error",
        filesystem: Any = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> WriteResult:
        """Write JSON lines: one object a row.

        Dates and times are ISO 8601 and decimals text; what is no number among floats is ``NaN``,
        ``Infinity`` and ``-Infinity``.

        Parameters
        ----------
        compression
            ``"gzip"``, ``"bz2"``, ``"zstd"``, ``"lz4"`` or None.
        partition_by, target_file_bytes, mode, filesystem, storage_options
            As for `write_parquet`.

        Raises
        ------
        PlanError, SourceError, TransformError
            As for `write_parquet`.

        Examples
        --------
        >>> import pyarrow as pa, pyarrow.parquet as pq, windrow
        >>> pq.write_table(pa.table({"x": [1, 2], "y": ["a", "b"]}), "numbers.parquet")
        >>> ds = windrow.read_parquet("numbers.parquet")
        >>> import pathlib
        >>> written = ds.write_json("as-json", mode="overwrite")
        >>> print(pathlib.Path(written.paths[0]).read_text())
        {"x":1,"y":"a"}
        {"x":2,"y":"b"}
        """
        return self._write(
            WriteRequest(
                JsonSink(compression),
                path,
                partition_by,
                target_file_bytes,
                mode,
                filesystem,
                storage_options,
            )
        )

    def write_arrow(
        self,
        path: str | os.PathLike[str],
        *,
        compression: str | None = None,
        partition_by: str | Sequence[str] = (),
        target_file_bytes: int | str | None = None,
        mode: Mode = "error",
        filesystem: Any = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> WriteResult:
        """Write Arrow IPC files, also known as Feather.

        Parameters
        ----------
        compression
            ``"lz4"``, ``"zstd"`` or None.
        partition_by, target_file_bytes, mode, filesystem, storage_options
            As for `write_parquet`.

        Raises
        ------
        PlanError, SourceError, TransformError
            As for `write_parquet`.

        Examples
        --------
        >>> import pyarrow as pa, pyarrow.parquet as pq, windrow
        >>> pq.write_table(pa.table({"x": [1, 2], "y": ["a", "b"]}), "numbers.parquet")
        >>> ds = windrow.read_parquet("numbers.parquet")
        >>> written = ds.write_arrow("as-arrow", mode="overwrite")
        >>> pa.ipc.open_file(written.paths[0]).read_all().to_pylist()
        [{'x': 1, 'y': 'a'}, {'x': 2, 'y': 'b'}]
        """
        return self._write(
            WriteRequest(
                IpcSink(compression),
                path,
                partition_by,
                target_file_bytes,
                mode,
                filesystem,
                storage_options,
            )
        )

    def write_numpy(
        self,
        path: str | os.PathLike[str],
        *,
        column: str | None = None,
        compression: str | None = None,
        partition_by: str | Sequence[str] = (),
        target_file_bytes: int | str | None = None,
        mode: Mode = "error",
        filesystem: Any = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> WriteResult:
        """Write NumPy files: ``.npy`` of one column, or ``.npz`` with one array for each.

        Columns of nulls, or of what no array without Python objects holds, are refused.

        Parameters
        ----------
        column
            The column of the ``.npy`` files; None: all columns, as ``.npz``.
        compression
            ``"deflate"`` for ``.npz``, or None.
        partition_by, target_file_bytes, mode, filesystem, storage_options
            As for `write_parquet`.

        Raises
        ------
        PlanError, SourceError, TransformError
            As for `write_parquet`.

        Examples
        --------
        >>> import pyarrow as pa, pyarrow.parquet as pq, windrow
        >>> pq.write_table(pa.table({"x": [1, 2], "y": ["a", "b"]}), "numbers.parquet")
        >>> ds = windrow.read_parquet("numbers.parquet")
        >>> import numpy as np
        >>> written = ds.write_numpy("as-numpy", column="x", mode="overwrite")
        >>> np.load(written.paths[0])
        array([1, 2])
        """
        return self._write(
            WriteRequest(
                NumpySink(column, compression),
                path,
                partition_by,
                target_file_bytes,
                mode,
                filesystem,
                storage_options,
            )
        )

    def write_tfrecords(
        self,
        path: str | os.PathLike[str],
        *,
        compression: str | None = None,
        partition_by: str | Sequence[str] = (),
        target_file_bytes: int | str | None = None,
        mode: Mode = "error",
        filesystem: Any = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> WriteResult:
        """Write TFRecord files of ``tf.train.Example`` messages; needs no TensorFlow.

        Integers and booleans are ``int64_list``, floats of 32 bits ``float_list``, text and bytes
        ``bytes_list``, lists of these likewise; null is a feature that is left out.

        Parameters
        ----------
        compression
            ``"gzip"`` or None.
        partition_by, target_file_bytes, mode, filesystem, storage_options
            As for `write_parquet`.

        Raises
        ------
        PlanError, SourceError, TransformError
            As for `write_parquet`.

        Examples
        --------
        >>> import pyarrow as pa, pyarrow.parquet as pq, windrow
        >>> pq.write_table(pa.table({"x": [1, 2], "y": ["a", "b"]}), "numbers.parquet")
        >>> ds = windrow.read_parquet("numbers.parquet")
        >>> ds.write_tfrecords("as-tfrecords", mode="overwrite").bytes
        84
        """
        return self._write(
            WriteRequest(
                TfRecordSink(compression),
                path,
                partition_by,
                target_file_bytes,
                mode,
                filesystem,
                storage_options,
            )
        )

    def write_webdataset(
        self,
        path: str | os.PathLike[str],
        *,
        compression: str | None = None,
        partition_by: str | Sequence[str] = (),
        target_file_bytes: int | str | None = None,
        mode: Mode = "error",
        filesystem: Any = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> WriteResult:
        """Write WebDataset tar files: a member ``<key>.<column>`` for each column of a row.

        The key is the column ``__key__``, or the file's number and the row's in it. The column's name says
        how it is written: ``npy`` (also ``mask.npy``) as an array, ``json`` as JSON, ``cls``, ``id`` and
        the like as digits; text and bytes as they are, under any name. Null is a member left out.

        Parameters
        ----------
        compression
            ``"gzip"`` or None.
        partition_by, target_file_bytes, mode, filesystem, storage_options
            As for `write_parquet`.

        Raises
        ------
        PlanError, SourceError, TransformError
            As for `write_parquet`.

        Examples
        --------
        >>> import pyarrow as pa, pyarrow.parquet as pq, windrow
        >>> pq.write_table(pa.table({"cls": [1, 2], "txt": ["a", "b"]}), "samples.parquet")
        >>> ds = windrow.read_parquet("samples.parquet")
        >>> written = ds.write_webdataset("as-webdataset", mode="overwrite")
        >>> import tarfile
        >>> with tarfile.open(written.paths[0]) as archive:
        ...     archive.getnames()
        ['00000/00000000.cls', '00000/00000000.txt', '00000/00000001.cls', '00000/00000001.txt']
        """
        return self._write(
            WriteRequest(
                WebDatasetSink(compression),
                path,
                partition_by,
                target_file_bytes,
                mode,
                filesystem,
                storage_options,
            )
        )
