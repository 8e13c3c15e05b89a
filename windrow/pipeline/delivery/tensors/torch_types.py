"""Names for torch's types, for annotations elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    DType = torch.dtype
    Device = str | torch.device

__all__ = ["DType", "Device"]
