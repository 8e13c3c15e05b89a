"""Grain: ArrayRecord files with one record per row, shuffled by index."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from bench.peers.base import OneTrainer, convert_once
from bench.training.facts import iterate_tables


class Grain(OneTrainer):
    """A random access source with Grain's global shuffle and batching."""

    def prepare(self) -> None:
        from grain.sources import ArrayRecordDataSource

        super().prepare()
        self._layout = np.dtype(
            [(field.name, field.type.to_pandas_dtype()) for field in self._request.schema]
        )
        home = convert_once(self._request, self._convert)
        self._source = ArrayRecordDataSource(sorted(map(str, home.iterdir())))

    def read_epoch(self, number: int) -> Iterable[Any]:
        """Use a new seed per epoch; worker processes decode and collate."""
        import grain
        import torch

        rows = grain.MapDataset.source(self._source).seed(self._request.seed + number).shuffle()
        batches = rows.map(self._decode).batch(self._request.batch_size)
        loaded = batches.to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=4))
        workers = grain.MultiprocessingOptions(num_workers=self._request.cores, per_worker_buffer_size=4)
        for batch in loaded.mp_prefetch(workers):
            yield {name: torch.from_numpy(values) for name, values in batch.items()}

    def _decode(self, record: bytes) -> dict[str, Any]:
        row = np.frombuffer(record, dtype=self._layout)[0]
        return {name: row[name] for name in self._layout.names or ()}

    def _convert(self, home: Path) -> None:
        from array_record.python.array_record_module import ArrayRecordWriter

        home.mkdir()
        for number, table in enumerate(iterate_tables(self._request.paths)):
            rows = np.empty(table.num_rows, dtype=self._layout)
            for name in table.column_names:
                rows[name] = table.column(name).to_numpy()
            writer = ArrayRecordWriter(str(home / f"rows-{number:05d}.array_record"), "group_size:1")
            for row in rows:
                writer.write(row.tobytes())
            writer.close()
