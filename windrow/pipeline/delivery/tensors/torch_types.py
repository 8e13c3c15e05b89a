"""Aliases of torch types for annotations in modules that do not import torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    DType = torch.dtype
    Device = str | torch.device

__all__ = ["DType", "Device"]
