"""Ray Data's ``random_shuffle``, reading the files again every epoch, or out of the object store."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bench.peers.base import OneTrainer, RayPeer


class RayShuffle(RayPeer, OneTrainer):
    """One consumer in the driver; every epoch runs the same lazy pipeline again."""

    _dataset: Any = None

    def prepare(self) -> None:
        super().prepare()
        import ray.data

        ray.data.DataContext.get_current().enable_progress_bars = False

    def read_epoch(self, number: int) -> Iterable[Any]:
        if self._dataset is None:
            self._dataset = self.read()
        shuffled, batch_size = self._dataset.random_shuffle(), self._request.batch_size
        if self._request.content is not None:
            batches: Iterable[Any] = shuffled.iter_batches(batch_size=batch_size, batch_format="pyarrow")
            return batches
        return shuffled.iter_torch_batches(batch_size=batch_size)

    def read(self) -> Any:
        import ray.data

        return ray.data.read_parquet(list(self._request.paths), columns=list(self._request.columns))


class RayMaterialize(RayShuffle):
    """Like `RayShuffle`, but after ``materialize()``, which is part of the first epoch."""

    def read(self) -> Any:
        return super().read().materialize()
