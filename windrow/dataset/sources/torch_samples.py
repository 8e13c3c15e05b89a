"""Converts samples of map-style torch datasets to tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from windrow.core.errors import SourceError
from windrow.dataset.sources.user_columns import table_of_items

__all__ = ["rows_of_samples"]


def rows_of_samples(samples: Sequence[Any], caller: str) -> pa.Table:
    """Return a table of samples: dicts by column, tuples as ``item_0``, ``item_1`` ..., others as ``item``.

    Raises
    ------
    SourceError
        If samples differ in kind, or cannot be converted to columns.
    """
    try:
        return table_of_items([_row(sample) for sample in samples], caller)
    except ValueError as error:
        raise SourceError(str(error)) from error


def _row(sample: Any) -> Any:
    if isinstance(sample, tuple) and hasattr(sample, "_asdict"):
        return sample._asdict()
    if isinstance(sample, (tuple, list)):
        return {f"item_{place}": value for place, value in enumerate(sample)}
    return dict(sample) if isinstance(sample, Mapping) else sample
