"""The same rows through every source that takes data from memory or another library."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import windrow

__all__ = ["SAME_ROWS_SOURCES", "make_rows"]


def make_rows(count: int) -> pa.Table:
    """Make rows with columns of four types; row i has ``x`` = i."""
    x = np.arange(count, dtype=np.int64)
    vectors = (x[:, None] + np.arange(3)).astype(np.float32)
    tensor = pa.fixed_shape_tensor(pa.float32(), [3])
    storage = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), 3)
    return pa.table(
        {
            "x": x,
            "half": x / 2,
            "flag": (x % 3).astype(np.uint8),
            "vector": pa.ExtensionArray.from_storage(tensor, storage),
        }
    )


def _arrays(rows: pa.Table) -> dict[str, Any]:
    names = [name for name in rows.column_names if name != "vector"]
    arrays = {name: rows[name].to_numpy() for name in names}
    return {**arrays, "vector": rows["vector"].combine_chunks().to_numpy_ndarray()}


def _plain(rows: pa.Table) -> pa.Table:
    return rows.drop_columns(["vector"])


def _items(rows: pa.Table, target: int, _: Path) -> windrow.Dataset:
    columns = _arrays(rows)
    items = [{name: array[i] for name, array in columns.items()} for i in range(rows.num_rows)]
    return windrow.from_items(items, target_block_bytes=target)


def _numpy(rows: pa.Table, target: int, _: Path) -> windrow.Dataset:
    return windrow.from_numpy(_arrays(rows), target_block_bytes=target)


def _arrow(rows: pa.Table, target: int, _: Path) -> windrow.Dataset:
    parts = [rows.slice(0, 5), *rows.slice(5).to_batches(max_chunksize=7)]
    return windrow.from_arrow(parts, target_block_bytes=target)


def _pandas(rows: pa.Table, target: int, _: Path) -> windrow.Dataset:
    import pandas as pd

    frame = pd.DataFrame({**_arrays(rows), "vector": np.zeros(rows.num_rows, np.int64)})
    return windrow.from_pandas([frame[:4], frame[4:].reset_index(drop=True)], target_block_bytes=target)


def _torch(rows: pa.Table, target: int, _: Path, *, items: bool) -> windrow.Dataset:
    torch = pytest.importorskip("torch")
    tensors = {name: torch.from_numpy(array.copy()) for name, array in _arrays(rows).items()}
    return windrow.from_torch(_ByNumber(tensors) if items else tensors, target_block_bytes=target)


class _ByNumber:
    """A map-style dataset."""

    def __init__(self, tensors: dict[str, Any]) -> None:
        self.tensors = tensors

    def __len__(self) -> int:
        return len(self.tensors["x"])

    def __getitem__(self, number: int) -> dict[str, Any]:
        return {name: tensor[number] for name, tensor in self.tensors.items()}


def _generator(rows: pa.Table, target: int, path: Path) -> windrow.Dataset:
    def batches() -> Iterator[pa.Table]:
        yield from (rows.slice(start, 6) for start in range(0, rows.num_rows, 6))

    return windrow.from_generator(batches, rows=rows.num_rows, cache_dir=path, target_block_bytes=target)


def _polars(rows: pa.Table, target: int, path: Path, *, lazy: bool) -> windrow.Dataset:
    pl = pytest.importorskip("polars")
    frame = pl.from_arrow(_plain(rows))
    if lazy:
        return windrow.from_polars(frame.lazy(), cache_dir=path, target_block_bytes=target)
    return windrow.from_polars(frame, target_block_bytes=target)


def _huggingface(rows: pa.Table, target: int, path: Path, *, disk: bool) -> windrow.Dataset:
    datasets = pytest.importorskip("datasets")
    dataset = datasets.Dataset(_plain(rows))
    if disk:
        datasets.disable_progress_bars()
        # reordered twice, so that rows are found through indices
        dataset.select(range(rows.num_rows - 1, -1, -1)).save_to_disk(str(path / "hf"))
        dataset = datasets.load_from_disk(str(path / "hf")).select(range(rows.num_rows - 1, -1, -1))
        assert dataset.cache_files
    return windrow.from_huggingface(dataset, target_block_bytes=target)


def _dask(rows: pa.Table, target: int, _: Path, *, stated: bool) -> windrow.Dataset:
    dd = pytest.importorskip("dask.dataframe")
    frame = dd.from_pandas(_plain(rows).to_pandas(), npartitions=-(-rows.num_rows * 17 // target))
    counts = list(frame.map_partitions(len).compute(scheduler="synchronous")) if stated else None
    return windrow.from_dask(frame, rows=counts)


SAME_ROWS_SOURCES: dict[str, Callable[[pa.Table, int, Path], windrow.Dataset]] = {
    "items": _items,
    "numpy": _numpy,
    "arrow": _arrow,
    "pandas": _pandas,
    "torch": partial(_torch, items=False),
    "torch items": partial(_torch, items=True),
    "generator": _generator,
    "polars": partial(_polars, lazy=False),
    "polars lazy": partial(_polars, lazy=True),
    "huggingface": partial(_huggingface, disk=False),
    "huggingface on disk": partial(_huggingface, disk=True),
    "dask": partial(_dask, stated=False),
    "dask counted": partial(_dask, stated=True),
}
