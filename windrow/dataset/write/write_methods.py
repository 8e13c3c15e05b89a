"""The ``write_*`` methods shared by Dataset and DatasetPipeline."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from windrow.dataset.write.write_job import WriteRequest
from windrow.io.sinks.arrow_sinks import CsvSink, IpcSink, ParquetSink
from windrow.io.sinks.commit import Mode
from windrow.io.sinks.json_sink import JsonSink
from windrow.io.sinks.numpy_sink import NumpySink
from windrow.io.sinks.tfrecord_sink import TfRecordSink
from windrow.io.sinks.webdataset_sink import WebDatasetSink
from windrow.io.sinks.written_manifest import WriteResult


class Writable(ABC):
    """Writing rows to files.

    A Dataset is written in parallel by threads or Ray tasks, according to ``options(executor=)``: one file
    per block, or files of ``target_file_bytes``. A pipeline is written epoch by epoch, in each epoch's
    order, into directories ``epoch=<number>``. Files appear under their names only once complete, and a
    retried task writes the same files. Last comes a manifest, ``_manifest-<job>.json``.
    """

    @abstractmethod
    def _write(self, request: WriteRequest) -> WriteResult:
        """Carry out a write request."""

    def write_parquet(
        self,
        path: str | os.PathLike[str],
        *,
        compression: str | None = "snappy",
        partition_by: str | Sequence[str] = (),
        target_file_bytes: int | str | None = None,
        mode: Mode = "error",
        failed_rows: str | os.PathLike[str] | None = None,
        filesystem: Any = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> WriteResult:
        """Write Parquet files.

        Parameters
        ----------
        path
            The output directory: a local path or a URL that fsspec supports (``s3://`` ...).
        compression
            ``"snappy"``, ``"gzip"``, ``"brotli"``, ``"zstd"``, ``"lz4"`` or None.
        partition_by
            Columns whose values become directories, ``column=value``, and are not stored in the files.
        target_file_bytes
            Approximate in-memory bytes of the rows of a file: an integer, or a string with a unit.
            None: one file per block; for pipelines ``"128MiB"``.
        mode
            How to treat existing files: ``"error"`` raises, ``"append"`` adds files, ``"overwrite"``
            deletes the old files after the new ones are complete. ``"resume"``, for a Dataset: if the write is
            interrupted, the same call goes on with it. Blocks whose files are complete are not read again; a write
            that had ended is left as it is. It recognises its files by the data, the format, and the transforms with
            their arguments and code; not by what functions call: after changing that, use another directory.
        failed_rows
            For a Dataset: a directory for rows for which a transform failed, as Parquet with the column
            ``windrow_error``. Of a function on batches, these are all rows of the failing batch. They are counted in
            the result. None (the default): the first error ends the write.
        filesystem
            An fsspec or ``pyarrow.fs`` filesystem for ``path`` and ``failed_rows``.
        storage_options
            fsspec options to open the URL.

        Returns
        -------
        WriteResult
            The files with their numbers of rows and bytes.

        Raises
        ------
        PlanError
            Before anything is written: if the format cannot carry a column's type, files already
            exist, or the pipeline never ends.
        SourceError, TransformError
            If reading, writing or a transform fails; all files written so far are deleted, unless with
            ``mode="resume"``.

        Examples
        --------
        >>> import windrow
        >>> ds = windrow.from_items([{"x": 1, "y": "a"}, {"x": 2, "y": "b"}])
        >>> written = ds.write_parquet("as-parquet", partition_by="y", mode="overwrite")
        >>> [(file.path.partition("/")[0], file.rows) for file in written.files]
        [('y=a', 1), ('y=b', 1)]
        >>> windrow.read_parquet("as-parquet").take()
        [{'x': 1, 'y': 'a'}, {'x': 2, 'y': 'b'}]
        """
        sink = ParquetSink(compression)
        request = WriteRequest(
            sink, path, partition_by, target_file_bytes, mode, filesystem, storage_options, failed_rows
        )
        return self._write(request)

    def write_csv(
        self,
        path: str | os.PathLike[str],
        *,
        compression: str | None = None,
        delimiter: str = ",",
        partition_by: str | Sequence[str] = (),
        target_file_bytes: int | str | None = None,
        mode: Mode = "error",
        failed_rows: str | os.PathLike[str] | None = None,
        filesystem: Any = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> WriteResult:
        """Write CSV files with a header and quoted text; nulls are empty values.

        Parameters
        ----------
        compression
            ``"gzip"``, ``"bz2"``, ``"zstd"``, ``"lz4"`` or None.
        delimiter
            The character between columns.
        partition_by, target_file_bytes, mode, failed_rows, filesystem, storage_options
            As for `write_parquet`.

        Raises
        ------
        PlanError, SourceError, TransformError
            As for `write_parquet`.

        Examples
        --------
        >>> import pathlib, windrow
        >>> ds = windrow.from_items([{"x": 1, "y": "a"}, {"x": 2, "y": "b"}])
        >>> written = ds.write_csv("as-csv", mode="overwrite")
        >>> print(pathlib.Path(written.paths[0]).read_text())
        "x","y"
        1,"a"
        2,"b"
        """
        sink = CsvSink(compression, delimiter)
        request = WriteRequest(
            sink, path, partition_by, target_file_bytes, mode, filesystem, storage_options, failed_rows
        )
        return self._write(request)

    def write_json(
        self,
        path: str | os.PathLike[str],
        *,
        compression: str | None = None,
        partition_by: str | Sequence[str] = (),
        target_file_bytes: int | str | None = None,
        mode: Mode = "error",
        failed_rows: str | os.PathLike[str] | None = None,
        filesystem: Any = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> WriteResult:
        """Write JSON lines files: one object per row.

        Dates and times are written as ISO 8601 text, decimals as text, and non-finite floats as
        ``NaN``, ``Infinity`` and ``-Infinity``.

        Parameters
        ----------
        compression
            ``"gzip"``, ``"bz2"``, ``"zstd"``, ``"lz4"`` or None.
        partition_by, target_file_bytes, mode, failed_rows, filesystem, storage_options
            As for `write_parquet`.

        Raises
        ------
        PlanError, SourceError, TransformError
            As for `write_parquet`.

        Examples
        --------
        >>> import pathlib, windrow
        >>> ds = windrow.from_items([{"x": 1, "y": "a"}, {"x": 2, "y": "b"}])
        >>> written = ds.write_json("as-json", mode="overwrite")
        >>> print(pathlib.Path(written.paths[0]).read_text())
        {"x":1,"y":"a"}
        {"x":2,"y":"b"}
        """
        sink = JsonSink(compression)
        request = WriteRequest(
            sink, path, partition_by, target_file_bytes, mode, filesystem, storage_options, failed_rows
        )
        return self._write(request)

    def write_arrow(
        self,
        path: str | os.PathLike[str],
        *,
        compression: str | None = None,
        partition_by: str | Sequence[str] = (),
        target_file_bytes: int | str | None = None,
        mode: Mode = "error",
        failed_rows: str | os.PathLike[str] | None = None,
        filesystem: Any = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> WriteResult:
        """Write Arrow IPC files, also known as Feather.

        Parameters
        ----------
        compression
            ``"lz4"``, ``"zstd"`` or None.
        partition_by, target_file_bytes, mode, failed_rows, filesystem, storage_options
            As for `write_parquet`.

        Raises
        ------
        PlanError, SourceError, TransformError
            As for `write_parquet`.

        Examples
        --------
        >>> import pyarrow as pa, windrow
        >>> ds = windrow.from_items([{"x": 1, "y": "a"}, {"x": 2, "y": "b"}])
        >>> written = ds.write_arrow("as-arrow", mode="overwrite")
        >>> pa.ipc.open_file(written.paths[0]).read_all().to_pylist()
        [{'x': 1, 'y': 'a'}, {'x': 2, 'y': 'b'}]
        """
        sink = IpcSink(compression)
        request = WriteRequest(
            sink, path, partition_by, target_file_bytes, mode, filesystem, storage_options, failed_rows
        )
        return self._write(request)

    def write_numpy(
        self,
        path: str | os.PathLike[str],
        *,
        column: str | None = None,
        compression: str | None = None,
        partition_by: str | Sequence[str] = (),
        target_file_bytes: int | str | None = None,
        mode: Mode = "error",
        failed_rows: str | os.PathLike[str] | None = None,
        filesystem: Any = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> WriteResult:
        """Write NumPy files: ``.npy`` with one column, or ``.npz`` with one array per column.

        Columns with nulls, or that need arrays of Python objects, raise an error.

        Parameters
        ----------
        column
            The column to write to ``.npy`` files; None: all columns, to ``.npz`` files.
        compression
            ``"deflate"`` for ``.npz``, or None.
        partition_by, target_file_bytes, mode, failed_rows, filesystem, storage_options
            As for `write_parquet`.

        Raises
        ------
        PlanError, SourceError, TransformError
            As for `write_parquet`.

        Examples
        --------
        >>> import numpy as np, windrow
        >>> ds = windrow.from_items([{"x": 1, "y": "a"}, {"x": 2, "y": "b"}])
        >>> written = ds.write_numpy("as-numpy", column="x", mode="overwrite")
        >>> np.load(written.paths[0])
        array([1, 2])
        """
        sink = NumpySink(column, compression)
        request = WriteRequest(
            sink, path, partition_by, target_file_bytes, mode, filesystem, storage_options, failed_rows
        )
        return self._write(request)

    def write_tfrecords(
        self,
        path: str | os.PathLike[str],
        *,
        compression: str | None = None,
        partition_by: str | Sequence[str] = (),
        target_file_bytes: int | str | None = None,
        mode: Mode = "error",
        failed_rows: str | os.PathLike[str] | None = None,
        filesystem: Any = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> WriteResult:
        """Write TFRecord files of ``tf.train.Example`` messages; needs no TensorFlow.

        Integers and booleans become ``int64_list``, 32-bit floats ``float_list``, text and bytes
        ``bytes_list``, lists of these likewise. For null, the feature is omitted.

        Parameters
        ----------
        compression
            ``"gzip"`` or None.
        partition_by, target_file_bytes, mode, failed_rows, filesystem, storage_options
            As for `write_parquet`.

        Raises
        ------
        PlanError, SourceError, TransformError
            As for `write_parquet`.

        Examples
        --------
        >>> import windrow
        >>> ds = windrow.from_items([{"x": 1, "y": "a"}, {"x": 2, "y": "b"}])
        >>> ds.write_tfrecords("as-tfrecords", mode="overwrite").bytes
        84
        """
        sink = TfRecordSink(compression)
        request = WriteRequest(
            sink, path, partition_by, target_file_bytes, mode, filesystem, storage_options, failed_rows
        )
        return self._write(request)

    def write_webdataset(
        self,
        path: str | os.PathLike[str],
        *,
        compression: str | None = None,
        partition_by: str | Sequence[str] = (),
        target_file_bytes: int | str | None = None,
        mode: Mode = "error",
        failed_rows: str | os.PathLike[str] | None = None,
        filesystem: Any = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> WriteResult:
        """Write WebDataset tar files: one member ``<key>.<column>`` per row and column.

        The key is the column ``__key__``, else the file's number and the row's number in the file. The
        column's name selects the encoding: ``npy`` (also ``mask.npy``) an array, ``json`` JSON, ``cls``,
        ``id`` and similar names digits; text and bytes are written unchanged under any name. For null,
        the member is omitted.

        Parameters
        ----------
        compression
            ``"gzip"`` or None.
        partition_by, target_file_bytes, mode, failed_rows, filesystem, storage_options
            As for `write_parquet`.

        Raises
        ------
        PlanError, SourceError, TransformError
            As for `write_parquet`.

        Examples
        --------
        >>> import tarfile, windrow
        >>> ds = windrow.from_items([{"cls": 1, "txt": "a"}, {"cls": 2, "txt": "b"}])
        >>> written = ds.write_webdataset("as-webdataset", mode="overwrite")
        >>> with tarfile.open(written.paths[0]) as archive:
        ...     archive.getnames()
        ['00000/00000000.cls', '00000/00000000.txt', '00000/00000001.cls', '00000/00000001.txt']
        """
        sink = WebDatasetSink(compression)
        request = WriteRequest(
            sink, path, partition_by, target_file_bytes, mode, filesystem, storage_options, failed_rows
        )
        return self._write(request)
