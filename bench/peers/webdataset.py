"""WebDataset: tar shards with one pickled dict per row."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.peers.base import SHARDS, OneTrainer, convert_once, iterate_rows


class WebDataset(OneTrainer):
    """Shards in random order, rows through a shuffle buffer."""

    libraries = ("webdataset",)

    def prepare(self) -> None:
        super().prepare()
        self._shards = sorted(map(str, convert_once(self._request, self._convert).glob("*.tar")))

    def read_epoch(self, number: int) -> Iterable[Any]:
        import webdataset
        from torch.utils.data import default_collate

        workers = self._request.cores  # each has its own buffer
        buffer = self.buffer_rows // workers
        rows = webdataset.WebDataset(
            self._shards, shardshuffle=len(self._shards), detshuffle=True, seed=self._request.seed + number
        )
        batches = (
            rows.shuffle(buffer, initial=buffer)
            .decode()
            .map(_take_row)
            .batched(self._request.batch_size, collation_fn=default_collate)
        )
        return webdataset.WebLoader(batches, batch_size=None, num_workers=workers, prefetch_factor=4)

    def _convert(self, home: Path) -> None:
        from webdataset import ShardWriter

        home.mkdir()
        count = -(-self._request.rows // SHARDS)
        with ShardWriter(str(home / "rows-%05d.tar"), maxcount=count, verbose=0) as writer:
            for number, row in enumerate(iterate_rows(self._request.paths)):
                writer.write({"__key__": f"{number:09d}", "row.pyd": row})


def _take_row(sample: dict[str, Any]) -> Any:
    return sample["row.pyd"]
