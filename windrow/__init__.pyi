"""The public names of windrow and their modules, for type checkers and for ``__init__.py``, which reads this text."""

from windrow.core.errors import (
    PlanError as PlanError,
    SourceError as SourceError,
    StallError as StallError,
    StateError as StateError,
    TransformError as TransformError,
    WindrowError as WindrowError,
)
from windrow.core.source import RowOrigin as RowOrigin
from windrow.core.variable_tensors import VariableShapeTensorType as VariableShapeTensorType
from windrow.dataset.dataset import Dataset as Dataset, DatasetPipeline as DatasetPipeline
from windrow.dataset.operations.group_methods import GroupedDataset as GroupedDataset
from windrow.dataset.shuffle_report import shuffle_report as shuffle_report
from windrow.dataset.sources.from_dask import from_dask as from_dask
from windrow.dataset.sources.from_generator import from_generator as from_generator
from windrow.dataset.sources.from_huggingface import from_huggingface as from_huggingface
from windrow.dataset.sources.from_memory import (
    from_arrow as from_arrow,
    from_items as from_items,
    from_numpy as from_numpy,
    from_pandas as from_pandas,
)
from windrow.dataset.sources.from_polars import from_polars as from_polars
from windrow.dataset.sources.from_range import range as range
from windrow.dataset.sources.from_ray import from_ray as from_ray
from windrow.dataset.sources.from_spark import from_spark as from_spark
from windrow.dataset.sources.from_torch import from_torch as from_torch
from windrow.dataset.sources.mix import mix as mix
from windrow.dataset.sources.mixture import mixture as mixture
from windrow.dataset.sources.read_arrow import read_arrow as read_arrow
from windrow.dataset.sources.read_avro import read_avro as read_avro
from windrow.dataset.sources.read_binary_files import read_binary_files as read_binary_files
from windrow.dataset.sources.read_csv import read_csv as read_csv
from windrow.dataset.sources.read_hdf5 import read_hdf5 as read_hdf5
from windrow.dataset.sources.read_images import read_images as read_images
from windrow.dataset.sources.read_json import read_json as read_json
from windrow.dataset.sources.read_mds import read_mds as read_mds
from windrow.dataset.sources.read_numpy import read_numpy as read_numpy
from windrow.dataset.sources.read_orc import read_orc as read_orc
from windrow.dataset.sources.read_parquet import read_parquet as read_parquet
from windrow.dataset.sources.read_sql import read_sql as read_sql
from windrow.dataset.sources.read_tables import (
    read_delta as read_delta,
    read_iceberg as read_iceberg,
    read_lance as read_lance,
)
from windrow.dataset.sources.read_text import read_text as read_text
from windrow.dataset.sources.read_tfrecords import read_tfrecords as read_tfrecords
from windrow.dataset.sources.read_webdataset import read_webdataset as read_webdataset
from windrow.dataset.sources.read_zarr import read_zarr as read_zarr
from windrow.io.sinks.written_manifest import WriteResult as WriteResult
from windrow.pipeline.checkpoint.merge_states import merge_state_dicts as merge_state_dicts
from windrow.pipeline.delivery.delivery import BatchIterator as BatchIterator
from windrow.pipeline.delivery.sequence_slice import SequenceSlice as SequenceSlice
from windrow.pipeline.delivery.tensors.ragged import Pad as Pad, Ragged as Ragged
from windrow.pipeline.launch.attachment import Attachment as Attachment, attach as attach
from windrow.pipeline.launch.gang import (
    GangContext as GangContext,
    ray_train_config as ray_train_config,
    run_gang as run_gang,
)
from windrow.pipeline.loaders.loader_methods import feed_trainer as feed_trainer
from windrow.pipeline.loaders.loader import Loader as Loader
from windrow.pipeline.plan.explanation import Explanation as Explanation
from windrow.shuffle.order.balance import Balance as Balance
from windrow.shuffle.order.token_budget import TokenBudget as TokenBudget
from windrow.pipeline.plan.shares import Shares as Shares
from windrow.pipeline.quality.shuffle_report import ShuffleReport as ShuffleReport
from windrow.pipeline.shard.epoch import Epoch as Epoch
from windrow.pipeline.shard.shard import Shard as Shard
from windrow.pipeline.statistics.stats import SourceStats as SourceStats, Stats as Stats
from windrow.pipeline.tasks.actor_pool import ActorPool as ActorPool
from windrow.pipeline.tasks.row_generator import RowGenerator as RowGenerator
from windrow.pipeline.tasks.sequence_boundaries import cu_seqlens as cu_seqlens
from windrow.pipeline.timeline.timeline import Timeline as Timeline

__all__: list[str]
__version__: str
