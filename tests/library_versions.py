"""The versions of libraries, for tests of what their older versions cannot do."""

from __future__ import annotations

from importlib import metadata
from typing import Any

import pyarrow as pa

from windrow.core.variable_tensors import is_variable_tensor

__all__ = [
    "ARROW",
    "FSSPEC",
    "RAY_UNCLOSED",
    "TORCH_WARNINGS",
    "is_older",
    "lightning_fit_options",
    "parquet_stores_nulls",
]


def is_older(library: str, *version: int) -> bool:
    """Whether the installed version of a library is older than this one; False if it is not installed."""
    try:
        installed = metadata.version(library)
    except metadata.PackageNotFoundError:
        return False
    return tuple(map(int, installed.split(".")[: len(version)])) < version


ARROW = int(pa.__version__.partition(".")[0])
FSSPEC = tuple(map(int, metadata.version("fsspec").split(".")[:2]))
# filters of warnings: Ray before 2.57 leaves processes and their log files to the garbage collector
RAY_UNCLOSED = (
    [
        "ignore:subprocess:ResourceWarning",
        "ignore:unclosed file <_io.FileIO name='/dev/null':ResourceWarning",
        "ignore:unclosed file <_io.TextIOWrapper name='/dev/null':ResourceWarning",
        # of Ray Data; only pytest takes patterns
        r"ignore:unclosed file <_io\.\w+ name='.*/logs/ray-data/:ResourceWarning",
    ]
    if is_older("ray", 2, 57)
    else []
)

# filters of warnings: of what newer versions of torch do by themselves
TORCH_WARNINGS = (
    [
        "ignore:You are using `torch.load` with `weights_only=False`:FutureWarning",
        "ignore:torch.distributed is unavailable or uninitialized:UserWarning",
    ]
    if is_older("torch", 2, 6)
    else []
)


def parquet_stores_nulls(kind: pa.DataType) -> bool:
    """Whether pyarrow writes and reads nulls of a type in Parquet: with lists of a fixed size from version 25 on."""
    storage = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    return ARROW >= 25 or not (pa.types.is_fixed_size_list(storage) or is_variable_tensor(kind))


def lightning_fit_options() -> dict[str, Any]:
    """Options of Lightning's ``Trainer.fit`` that allow nothing but plain values in a checkpoint: from 2.6 on."""
    return {} if is_older("pytorch-lightning", 2, 6) else {"weights_only": True}
