"""MosaicML Streaming: MDS shards, rows as dicts, torch's DataLoader."""

from __future__ import annotations

import importlib.machinery
import sys
import types
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from bench.peers.base import SHARDS, OneTrainer, convert_once, iterate_rows, load_by_workers
from bench.training.facts import is_list, iterate_tables


class MosaicMLStreaming(OneTrainer):
    """The recommended shuffle algorithm, over as many rows as the buffers of other rivals hold."""

    def prepare(self) -> None:
        super().prepare()
        _stand_in_for_torchvision()
        from streaming import StreamingDataset
        from streaming.base.util import clean_stale_shared_memory

        clean_stale_shared_memory()  # left behind by an interrupted run
        dataset = StreamingDataset(
            local=str(convert_once(self._request, self._convert)),
            shuffle=True,
            shuffle_seed=self._request.seed,
            shuffle_block_size=self.buffer_rows,
            batch_size=self._request.batch_size,
            num_canonical_nodes=1,
        )
        self._loader = load_by_workers(dataset, self._request, persistent_workers=True)

    def read_epoch(self, number: int) -> Iterable[Any]:
        return self._loader

    def _convert(self, home: Path) -> None:
        from streaming import MDSWriter

        columns = {field.name: _name_encoding(field.type) for field in self._request.schema}
        size = sum(table.nbytes for table in iterate_tables(self._request.paths)) // SHARDS
        with MDSWriter(out=str(home), columns=columns, size_limit=size) as writer:
            for row in iterate_rows(self._request.paths):
                writer.write(row)


def _name_encoding(kind: pa.DataType) -> str:
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "str"
    if is_list(kind):
        return f"ndarray:{kind.value_type}"
    return str(kind).replace("double", "float64")


def _stand_in_for_torchvision() -> None:
    """Provide empty modules: streaming imports torchvision for images, and no build of it fits every torch."""
    names = ("torchvision", "torchvision.datasets", "torchvision.transforms")
    for name in (*names, "torchvision.transforms.functional"):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__spec__ = importlib.machinery.ModuleSpec(name, None)
    vars(sys.modules["torchvision.datasets"])["VisionDataset"] = object
    vars(sys.modules["torchvision.transforms.functional"])["to_tensor"] = None
