"""The common end of all ``read_*`` functions for files: parse shared arguments and open the files."""

from __future__ import annotations

from typing import Any

from windrow.core.byte_sizes import parse_bytes
from windrow.dataset.dataset import Dataset
from windrow.dataset.logical_plan import LogicalPlan
from windrow.io.catalog.file_source import open_files
from windrow.io.formats.format import Format, SurveyedFormat
from windrow.io.storage.retries import Retries

__all__ = ["read_files"]


def read_files(
    paths: Any,
    format: Format | SurveyedFormat,
    *,
    target_block_bytes: int | str,
    retry_seconds: float,
    **options: Any,
) -> Dataset:
    """Return files as a dataset; ``options`` are those of ``windrow.io.catalog.file_source.open_files``."""
    source = open_files(
        paths,
        format,
        target_block_bytes=parse_bytes(target_block_bytes, "target_block_bytes"),
        retries=Retries(seconds=retry_seconds),
        **options,
    )
    return Dataset(LogicalPlan(source))
