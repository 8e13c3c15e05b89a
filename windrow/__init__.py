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

import importlib as _importlib
import typing as _typing

if _typing.TYPE_CHECKING:
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

# Where each name is, for when it is asked for: a worker needs few of these modules, and all take
# as long to import as Arrow does.
_HOMES = {
    "PlanError": "windrow.core.errors",
    "SourceError": "windrow.core.errors",
    "StallError": "windrow.core.errors",
    "StateError": "windrow.core.errors",
    "TransformError": "windrow.core.errors",
    "WindrowError": "windrow.core.errors",
    "RowOrigin": "windrow.core.source",
    "Dataset": "windrow.dataset.dataset",
    "from_arrow": "windrow.dataset.from_arrow",
    "read_arrow": "windrow.dataset.from_arrow_files",
    "read_binary_files": "windrow.dataset.from_binary",
    "read_csv": "windrow.dataset.from_csv",
    "from_dask": "windrow.dataset.from_dask",
    "from_generator": "windrow.dataset.from_generator",
    "from_huggingface": "windrow.dataset.from_huggingface",
    "read_images": "windrow.dataset.from_images",
    "from_items": "windrow.dataset.from_items",
    "read_json": "windrow.dataset.from_json",
    "from_numpy": "windrow.dataset.from_numpy",
    "read_numpy": "windrow.dataset.from_numpy_files",
    "from_pandas": "windrow.dataset.from_pandas",
    "read_parquet": "windrow.dataset.from_parquet",
    "from_polars": "windrow.dataset.from_polars",
    "range": "windrow.dataset.from_range",
    "from_ray": "windrow.dataset.from_ray",
    "from_spark": "windrow.dataset.from_spark",
    "read_delta": "windrow.dataset.from_tables",
    "read_iceberg": "windrow.dataset.from_tables",
    "read_lance": "windrow.dataset.from_tables",
    "read_text": "windrow.dataset.from_text",
    "read_tfrecords": "windrow.dataset.from_tfrecords",
    "from_torch": "windrow.dataset.from_torch",
    "read_webdataset": "windrow.dataset.from_webdataset",
    "DatasetPipeline": "windrow.dataset.pipeline",
    "WriteResult": "windrow.io.sinks.written",
    "Epoch": "windrow.pipeline.epoch",
    "Explanation": "windrow.pipeline.explain",
    "merge_state_dicts": "windrow.pipeline.merging",
    "Shard": "windrow.pipeline.shard",
    "Stats": "windrow.pipeline.stats",
}


def __getattr__(name: str) -> _typing.Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(_importlib.import_module(_HOMES[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__} - {"annotations"})
