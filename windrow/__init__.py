"""windrow: Parquet in, a new random order every epoch, exactly-once shards out.

>>> import pyarrow as pa, pyarrow.parquet as pq, windrow
>>> pq.write_table(pa.table({"x": range(6)}), "numbers.parquet")
>>> pipe = windrow.read_parquet("numbers.parquet").repeat(2).random_shuffle_each_window(seed=7)
>>> for batch in pipe.iter_batches(batch_size=3):
...     print(len(batch["x"]))
3
3
3
3
"""

from __future__ import annotations

from windrow.core.errors import (
    PlanError,
    SourceError,
    StallError,
    StateError,
    TransformError,
    WindrowError,
)
from windrow.core.source import RowOrigin
from windrow.dataset.dataset import Dataset
from windrow.dataset.from_parquet import read_parquet
from windrow.dataset.pipeline import DatasetPipeline
from windrow.pipeline.epoch import Epoch
from windrow.pipeline.explain import Explanation
from windrow.pipeline.merging import merge_state_dicts
from windrow.pipeline.shard import Shard
from windrow.pipeline.stats import Stats

__version__ = "0.1.0"

__all__ = [
    "Dataset",
    "DatasetPipeline",
    "Epoch",
    "Explanation",
    "PlanError",
    "RowOrigin",
    "Shard",
    "SourceError",
    "StallError",
    "StateError",
    "Stats",
    "TransformError",
    "WindrowError",
    "__version__",
    "merge_state_dicts",
    "read_parquet",
]
