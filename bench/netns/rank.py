"""One rank on an emulated node: reads its shard, and writes for each epoch when it ended, its rows and the traffic."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import windrow

_POLL_SECONDS = 0.02
_COUNTERS = Path("/sys/class/net/eth0/statistics")


def make_pipe(paths: str, blocks: int, epochs: int) -> windrow.DatasetPipeline:
    pipe = windrow.read_parquet(paths).window(blocks_per_window=blocks).repeat(epochs)
    return pipe.random_shuffle_each_window(seed=7).options(progress=False)


def select_columns(names: Sequence[str], replica: int, replicas: int) -> list[str]:
    """The columns of one of several replicas that divide them; all have the key."""
    return ["key", *[name for name in names if name != "key"][replica::replicas]]


def digest_epoch(epoch: Any, batch_rows: int, columns: list[str] | None = None) -> tuple[str, int]:
    """A digest of the keys of an epoch in their order, and their number."""
    digest, rows = hashlib.sha256(), 0
    for batch in epoch.iter_batches(batch_size=batch_rows, columns=columns):
        assert columns is None or list(batch) == columns, "a replica gets what it selects"
        digest.update(batch["key"].tobytes())
        rows += len(batch["key"])
    return digest.hexdigest()[:16], rows


def main() -> None:
    paths, blocks, epochs, batch_rows, folder, replicas, divides = sys.argv[1:]
    rank, target = os.environ["RANK"], Path(folder)
    # ranks side by side read the same shard, each on a node of its own
    shard_number, replica = divmod(int(rank), int(replicas))
    shards = int(os.environ["WORLD_SIZE"]) // int(replicas)
    pipe = make_pipe(paths, int(blocks), int(epochs))
    columns = None
    if divides == "divided":
        columns = select_columns(windrow.read_parquet(paths).schema().names, replica, int(replicas))
    with pipe.shard(rank=shard_number, world_size=shards, replica=(replica, int(replicas))) as shard:
        for epoch in shard.iter_epochs():
            digest, rows = digest_epoch(epoch, int(batch_rows), columns)
            traffic = {name: int((_COUNTERS / f"{name}_bytes").read_text()) for name in ("rx", "tx")}
            line = {"epoch": epoch.number, "digest": digest, "rows": rows, "at": time.monotonic(), **traffic}
            with (target / f"{rank}.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")
            _wait_for_ranks(target, epoch.number + 1)


def _wait_for_ranks(folder: Path, epochs: int) -> None:
    """Wait until all ranks have read some epochs, as ranks do that train together."""
    files = [folder / f"{rank}.jsonl" for rank in range(int(os.environ["WORLD_SIZE"]))]
    while not all(file.exists() and file.read_text().count("\n") >= epochs for file in files):
        time.sleep(_POLL_SECONDS)


if __name__ == "__main__":
    main()
