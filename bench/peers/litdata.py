"""LitData: optimised chunks, rows as dicts, its own DataLoader."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from bench.peers.base import SHARDS, OneTrainer, choose_collate, convert_once, iterate_rows

# rows that are shuffled among each other by default; it decodes fewer large rows at once, and those again and again
_SHUFFLED_ROWS = 256


class LitData(OneTrainer):
    """The default shuffle: of chunks, and of rows within the ranges of a chunk that it decodes together."""

    def prepare(self) -> None:
        from litdata import StreamingDataLoader, StreamingDataset

        super().prepare()
        home = convert_once(self._request, self._convert)
        dataset = StreamingDataset(
            str(home), shuffle=True, drop_last=False, seed=self._request.seed, batch_decode=_SHUFFLED_ROWS
        )
        # without worker processes: passing batches between processes costs more than they save
        self._loader = StreamingDataLoader(
            dataset,
            batch_size=self._request.batch_size,
            num_workers=0,
            collate_fn=choose_collate(self._request),
        )

    def read_epoch(self, number: int) -> Iterable[Any]:
        return self._loader

    def _convert(self, home: Path) -> None:
        from litdata import optimize

        optimize(
            fn=_read_file,
            inputs=list(self._request.paths),
            output_dir=str(home),
            chunk_size=-(-self._request.rows // SHARDS),
            num_workers=1,
            keep_data_ordered=True,
            verbose=False,
        )


def _read_file(path: str) -> Iterable[dict[str, Any]]:
    for row in iterate_rows([path]):
        yield {name: _to_stored(value) for name, value in row.items()}


def _to_stored(value: Any) -> Any:
    """Lists as tensors, which it stores without a header."""
    import torch

    return torch.from_numpy(value.copy()) if isinstance(value, np.ndarray) else value
