"""torch's DataLoader over row groups: a module of its own, since it imports torch and workers unpickle its class."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow.parquet as pq
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from bench.training.tensors import to_tensors


def load_row_groups(
    paths: Sequence[str], columns: Sequence[str], batch_size: int, workers: int, *, pins: bool
) -> DataLoader[Any]:
    """Batches of row groups in another random order each time, in pinned memory."""
    return DataLoader(
        _RowGroups(paths, columns, batch_size),
        batch_size=None,
        num_workers=workers,
        pin_memory=pins,
        persistent_workers=True,
        # this process has used the GPU
        multiprocessing_context="spawn",
    )


class _RowGroups(IterableDataset[Any]):
    """Batches within row groups, which the workers divide."""

    def __init__(self, paths: Sequence[str], columns: Sequence[str], batch_size: int) -> None:
        self._paths, self._columns, self._batch_size = paths, list(columns), batch_size
        self._passes = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        info = get_worker_info()
        groups = [(path, at) for path in self._paths for at in range(pq.read_metadata(path).num_row_groups)]
        random.Random(self._passes).shuffle(groups)
        self._passes += 1
        own = groups if info is None else groups[info.id :: info.num_workers]
        for path, number in own:
            with pq.ParquetFile(path) as file:
                tensors = to_tensors(file.read_row_group(number, columns=self._columns))
            for views in zip(*(tensor.split(self._batch_size) for tensor in tensors.values()), strict=True):
                yield dict(zip(tensors, views, strict=True))
