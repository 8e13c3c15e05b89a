"""A rank that reads until a file says that it was observed; prints what it has read."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import windrow

SHARDS = 2


def make_pipe(executor: str) -> windrow.DatasetPipeline:
    dataset = windrow.range(4_000, block_rows=100).window(blocks_per_window=4).repeat(1)
    return dataset.random_shuffle_each_window(seed=7).options(executor=executor, progress=False)


if __name__ == "__main__":
    observed = Path(sys.argv[1])
    found: list[int] = []
    with make_pipe("auto").shard() as shard:
        for batch in shard.iter_batches(batch_size=100):
            found += batch["id"].tolist()
            if len(found) == 1_000:
                deadline = time.monotonic() + 200
                while not observed.exists() and time.monotonic() < deadline:
                    time.sleep(0.1)
    print(f"#{os.environ['RANK']} {json.dumps(found)}", flush=True)
