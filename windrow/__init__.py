"""windrow: a streaming dataset engine with windowed per-epoch shuffle and exactly-once shards.

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
import logging as _logging
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
    from windrow.core.variable_tensors import VariableShapeTensorType
    from windrow.dataset.dataset import Dataset
    from windrow.dataset.operations.grouped_dataset import GroupedDataset
    from windrow.dataset.operations.mix import mix
    from windrow.dataset.pipeline import DatasetPipeline
    from windrow.dataset.shuffle_report import shuffle_report
    from windrow.dataset.sources.from_dask import from_dask
    from windrow.dataset.sources.from_generator import from_generator
    from windrow.dataset.sources.from_huggingface import from_huggingface
    from windrow.dataset.sources.from_memory import from_arrow, from_items, from_numpy, from_pandas
    from windrow.dataset.sources.from_polars import from_polars
    from windrow.dataset.sources.from_range import range
    from windrow.dataset.sources.from_ray import from_ray
    from windrow.dataset.sources.from_spark import from_spark
    from windrow.dataset.sources.from_torch import from_torch
    from windrow.dataset.sources.read_arrow import read_arrow
    from windrow.dataset.sources.read_binary_files import read_binary_files
    from windrow.dataset.sources.read_csv import read_csv
    from windrow.dataset.sources.read_images import read_images
    from windrow.dataset.sources.read_json import read_json
    from windrow.dataset.sources.read_numpy import read_numpy
    from windrow.dataset.sources.read_parquet import read_parquet
    from windrow.dataset.sources.read_tables import read_delta, read_iceberg, read_lance
    from windrow.dataset.sources.read_text import read_text
    from windrow.dataset.sources.read_tfrecords import read_tfrecords
    from windrow.dataset.sources.read_webdataset import read_webdataset
    from windrow.io.sinks.written_manifest import WriteResult
    from windrow.pipeline.checkpoint.merge_states import merge_state_dicts
    from windrow.pipeline.delivery.iteration_methods import BatchIterator
    from windrow.pipeline.delivery.tensors.ragged import Pad, Ragged
    from windrow.pipeline.launch.attachment import Attachment, attach
    from windrow.pipeline.launch.gang import GangContext, ray_train_config, run_gang
    from windrow.pipeline.loaders.loader import Loader
    from windrow.pipeline.loaders.loader_methods import feed_trainer
    from windrow.pipeline.plan.explain import Explanation
    from windrow.pipeline.quality.shuffle_report import ShuffleReport
    from windrow.pipeline.shard.epoch import Epoch
    from windrow.pipeline.shard.shard import Shard
    from windrow.pipeline.statistics.stats import Stats
    from windrow.pipeline.tasks.actor_pool import ActorPool
    from windrow.pipeline.tasks.row_generator import RowGenerator
    from windrow.pipeline.timeline.timeline import Timeline

__version__ = "0.1.0"

# without a handler of the program's own, nothing is printed
_logging.getLogger(__name__).addHandler(_logging.NullHandler())

__all__ = [
    "ActorPool",
    "Attachment",
    "BatchIterator",
    "Dataset",
    "DatasetPipeline",
    "Epoch",
    "Explanation",
    "GangContext",
    "GroupedDataset",
    "Loader",
    "Pad",
    "PlanError",
    "Ragged",
    "RowGenerator",
    "RowOrigin",
    "Shard",
    "ShuffleReport",
    "SourceError",
    "StallError",
    "StateError",
    "Stats",
    "Timeline",
    "TransformError",
    "VariableShapeTensorType",
    "WindrowError",
    "WriteResult",
    "__version__",
    "attach",
    "feed_trainer",
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
    "mix",
    "range",
    "ray_train_config",
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
    "run_gang",
    "shuffle_report",
]

# The module of each public name, imported on first use: a worker needs few of these modules, and importing
# all of them takes as long as importing Arrow.
_MODULES = {
    "PlanError": "windrow.core.errors",
    "SourceError": "windrow.core.errors",
    "StallError": "windrow.core.errors",
    "StateError": "windrow.core.errors",
    "TransformError": "windrow.core.errors",
    "WindrowError": "windrow.core.errors",
    "RowOrigin": "windrow.core.source",
    "VariableShapeTensorType": "windrow.core.variable_tensors",
    "Dataset": "windrow.dataset.dataset",
    "from_arrow": "windrow.dataset.sources.from_memory",
    "read_arrow": "windrow.dataset.sources.read_arrow",
    "read_binary_files": "windrow.dataset.sources.read_binary_files",
    "read_csv": "windrow.dataset.sources.read_csv",
    "from_dask": "windrow.dataset.sources.from_dask",
    "from_generator": "windrow.dataset.sources.from_generator",
    "from_huggingface": "windrow.dataset.sources.from_huggingface",
    "read_images": "windrow.dataset.sources.read_images",
    "from_items": "windrow.dataset.sources.from_memory",
    "read_json": "windrow.dataset.sources.read_json",
    "from_numpy": "windrow.dataset.sources.from_memory",
    "read_numpy": "windrow.dataset.sources.read_numpy",
    "from_pandas": "windrow.dataset.sources.from_memory",
    "read_parquet": "windrow.dataset.sources.read_parquet",
    "from_polars": "windrow.dataset.sources.from_polars",
    "range": "windrow.dataset.sources.from_range",
    "from_ray": "windrow.dataset.sources.from_ray",
    "from_spark": "windrow.dataset.sources.from_spark",
    "read_delta": "windrow.dataset.sources.read_tables",
    "read_iceberg": "windrow.dataset.sources.read_tables",
    "read_lance": "windrow.dataset.sources.read_tables",
    "read_text": "windrow.dataset.sources.read_text",
    "read_tfrecords": "windrow.dataset.sources.read_tfrecords",
    "from_torch": "windrow.dataset.sources.from_torch",
    "read_webdataset": "windrow.dataset.sources.read_webdataset",
    "GroupedDataset": "windrow.dataset.operations.grouped_dataset",
    "mix": "windrow.dataset.operations.mix",
    "DatasetPipeline": "windrow.dataset.pipeline",
    "shuffle_report": "windrow.dataset.shuffle_report",
    "WriteResult": "windrow.io.sinks.written_manifest",
    "Epoch": "windrow.pipeline.shard.epoch",
    "BatchIterator": "windrow.pipeline.delivery.iteration_methods",
    "Explanation": "windrow.pipeline.plan.explain",
    "merge_state_dicts": "windrow.pipeline.checkpoint.merge_states",
    "Attachment": "windrow.pipeline.launch.attachment",
    "attach": "windrow.pipeline.launch.attachment",
    "feed_trainer": "windrow.pipeline.loaders.loader_methods",
    "GangContext": "windrow.pipeline.launch.gang",
    "run_gang": "windrow.pipeline.launch.gang",
    "Loader": "windrow.pipeline.loaders.loader",
    "Pad": "windrow.pipeline.delivery.tensors.ragged",
    "Ragged": "windrow.pipeline.delivery.tensors.ragged",
    "ray_train_config": "windrow.pipeline.launch.gang",
    "ShuffleReport": "windrow.pipeline.quality.shuffle_report",
    "Shard": "windrow.pipeline.shard.shard",
    "ActorPool": "windrow.pipeline.tasks.actor_pool",
    "RowGenerator": "windrow.pipeline.tasks.row_generator",
    "Stats": "windrow.pipeline.statistics.stats",
    "Timeline": "windrow.pipeline.timeline.timeline",
}


def __getattr__(name: str) -> _typing.Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(_importlib.import_module(_MODULES[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__} - {"annotations"})
