"""`DatasetPipeline` by the module that pickles name; it stands beside `Dataset`, since each hands out the other."""

from __future__ import annotations

from windrow.dataset.dataset import DatasetPipeline

__all__ = ["DatasetPipeline"]
