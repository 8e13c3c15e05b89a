"""Batches of tensors for functions of ``map_batches``."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from windrow.pipeline.delivery.batch_formats import to_numpy

__all__ = ["to_torch"]

# kinds of NumPy types that torch has too
_NUMBERS = "biuf"


def to_torch(batch: pa.RecordBatch) -> dict[str, Any]:
    """Convert numbers, booleans and tensors to torch; other columns stay NumPy arrays. The tensors own their memory."""
    import torch

    arrays = to_numpy(batch, writable=True)
    return {
        # a copy: what Arrow marks as mutable can be the user's own data
        name: torch.from_numpy(array.copy()) if array.dtype.kind in _NUMBERS else array
        for name, array in arrays.items()
    }
