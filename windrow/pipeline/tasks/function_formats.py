"""What a function of ``map_batches`` gets: a batch as NumPy arrays, a DataFrame, an Arrow table or torch tensors."""

from __future__ import annotations

from typing import Any, Literal

import pyarrow as pa

from windrow.core.errors import PlanError
from windrow.core.optional_dependencies import require
from windrow.pipeline.delivery.batch_formats import BatchFormat, check_format, convert

__all__ = ["FunctionFormat", "check_function_format", "function_batch"]

FunctionFormat = BatchFormat | Literal["torch"]


def check_function_format(batch_format: str) -> None:
    """Raise PlanError if a format does not exist, or its library is not installed."""
    if batch_format == "torch":
        require("torch", "torch", 'batch_format="torch"')
        return
    try:
        check_format(batch_format)
    except PlanError as error:
        raise PlanError(f"{error}, 'torch'" if "is unknown" in str(error) else str(error)) from error


def function_batch(batch: pa.RecordBatch, batch_format: FunctionFormat) -> Any:
    """Convert a batch for a function; NumPy arrays are views, and read-only."""
    if batch_format == "torch":
        from windrow.pipeline.delivery.tensors.function_batches import to_torch

        return to_torch(batch)
    return convert(batch, batch_format, writable=False)
