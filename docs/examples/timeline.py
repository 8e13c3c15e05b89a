"""Train for two epochs on a small dataset, and draw the timeline of the run.

python docs/examples/timeline.py --picture timeline.svg --trace timeline.json
"""

import argparse
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import windrow


def generate(folder, rows):
    """Write four files of 8 columns."""
    for part in range(4):
        values = np.random.Generator(np.random.Philox(part)).standard_normal((8, rows // 4))
        ds = windrow.from_numpy(
            {f"c{at}": column for at, column in enumerate(values)}, target_block_bytes="4MB"
        )
        ds.write_parquet(folder, mode="append")


def normalise(batch):
    return {name: (column - column.mean()) / column.std() for name, column in batch.items()}


def train(shard):
    for epoch in shard.iter_epochs():
        for _ in epoch.iter_torch_batches(batch_size=16_384):
            time.sleep(0.01)  # stands for a step on a GPU


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--picture", default="timeline.png")
parser.add_argument("--trace")
parser.add_argument("--rows", type=int, default=1_600_000)
options = parser.parse_args()
with tempfile.TemporaryDirectory() as folder:
    generate(folder, options.rows)
    ds = windrow.read_parquet(folder, target_block_bytes="4MB").map_batches(normalise)
    pipe = ds.window(bytes_per_window="24MB").repeat(2).random_shuffle_each_window(seed=7)
    pipe = pipe.options(executor="threads", progress=False)
    with ThreadPoolExecutor(2) as trainers:
        list(trainers.map(train, pipe.split(2, equal=True)))
timeline = pipe.timeline()
print(timeline)
timeline.save(options.picture)
if options.trace:
    timeline.save(options.trace)
