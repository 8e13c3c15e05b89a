"""windrow: Parquet in, a new random order every epoch, exactly-once shards out.

>>> import pyarrow as pa, pyarrow.parquet as pq, windrow
>>> pq.write_table(pa.table({"x": [0, 1, 2, 3, 4, 5]}), "numbers.parquet")
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
from windrow.dataset.from_arrow import from_arrow
from windrow.dataset.from_arrow_files import read_arrow
from windrow.dataset.from_binary import read_binary_files
from windrow.dataset.from_csv import read_csv
from windrow.dataset.from_dask import from_dask
from windrow.dataset.from_generator import from_generator
from windrow.dataset.from_huggingface import from_huggingface
from windrow.dataset.from_images import read_images
from windrow.dataset.from_items import from_items
from windrow.dataset.from_json import read_json
from windrow.dataset.from_numpy import from_numpy
from windrow.dataset.from_numpy_files import read_numpy
from windrow.dataset.from_pandas import from_pandas
from windrow.dataset.from_parquet import read_parquet
from windrow.dataset.from_polars import from_polars
from windrow.dataset.from_range import range
from windrow.dataset.from_ray import from_ray
from windrow.dataset.from_spark import from_spark
from windrow.dataset.from_tables import read_delta, read_iceberg, read_lance
from windrow.dataset.from_text import read_text
from windrow.dataset.from_tfrecords import read_tfrecords
from windrow.dataset.from_torch import from_torch
from windrow.dataset.from_webdataset import read_webdataset
from windrow.dataset.pipeline import DatasetPipeline
from windrow.io.sinks.written import WriteResult
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
    "WriteResult",
    "__version__",
    "from_arrow",
    "from_dask",
    "from_generator",
    "from_huggingface",
    "from_items",
    "from_numpy",
    "from_pandas",
    "from_polars",
    "from_ray",
    "from_spark",
    "from_torch",
    "merge_state_dicts",
    "range",
    "read_arrow",
    "read_binary_files",
    "read_csv",
    "read_delta",
    "read_iceberg",
    "read_images",
    "read_json",
    "read_lance",
    "read_numpy",
    "read_parquet",
    "read_text",
    "read_tfrecords",
    "read_webdataset",
]
