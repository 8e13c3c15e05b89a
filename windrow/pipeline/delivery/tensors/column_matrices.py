"""Joins columns to one matrix tensor, which is allocated once and filled column by column."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from windrow.core.errors import PlanError
from windrow.pipeline.delivery.tensors.column_tensors import column_tensors
from windrow.pipeline.delivery.tensors.schema_check import tensor_dtype, tensor_shape

if TYPE_CHECKING:
    import torch

__all__ = ["build_matrix", "check_matrix"]


def check_matrix(names: list[str], schema: pa.Schema, dtype: torch.dtype | None, unsqueeze: bool) -> None:
    """Raise PlanError if columns have no common shape, or no common dtype and none is given."""
    _check_shapes(names, schema, unsqueeze)
    if dtype is None:
        _check_promotion(names, schema)


def _check_shapes(names: list[str], schema: pa.Schema, unsqueeze: bool) -> None:
    shapes = [tensor_shape(schema.field(name).type) for name in names]
    if len(names) == 1 or (unsqueeze and len(set(shapes)) == 1):
        return
    if not unsqueeze and all(shapes) and len({shape[1:] for shape in shapes}) == 1:
        return
    listed = ", ".join(
        f"{name!r} (rows{''.join(f', {n}' for n in s)})" for name, s in zip(names, shapes, strict=True)
    )
    fix = (
        "give each shape its own list in feature_columns"
        if unsqueeze
        else "give unsqueeze_feature_tensors=True, or each column its own list in feature_columns"
    )
    raise PlanError(f"these feature columns do not join to one tensor: {listed}; {fix}")


def _check_promotion(names: list[str], schema: pa.Schema) -> None:
    import torch

    try:
        _common_dtype(torch.from_numpy(np.empty(0, tensor_dtype(schema.field(name).type))) for name in names)
    except RuntimeError as exc:
        listed = ", ".join(f"{name!r} ({schema.field(name).type})" for name in names)
        raise PlanError(
            f"torch has no common dtype for the feature columns {listed}: give feature_column_dtypes"
        ) from exc


def _common_dtype(tensors: Iterable[torch.Tensor]) -> torch.dtype:
    import torch

    return reduce(torch.promote_types, (tensor.dtype for tensor in tensors))


def build_matrix(
    batch: pa.RecordBatch, names: list[str], dtype: torch.dtype | None, unsqueeze: bool, *, pin: bool
) -> torch.Tensor:
    """Join columns along the second dimension; ``unsqueeze`` reshapes each (rows, ...) to (rows, 1, ...)."""
    import torch

    columns = column_tensors(batch, names)
    parts = [columns[name] for name in names]
    if unsqueeze:
        parts = [part.unsqueeze(1) for part in parts]
    shape = list(parts[0].shape)
    if len(shape) > 1:
        shape[1] = sum(part.shape[1] for part in parts)
    matrix = torch.empty(shape, dtype=dtype or _common_dtype(parts), pin_memory=pin)
    if len(shape) == 1:
        return matrix.copy_(parts[0])
    start = 0
    for part in parts:
        matrix.narrow(1, start, part.shape[1]).copy_(part)
        start += part.shape[1]
    return matrix
