"""Samples as torch datasets give them, as rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from windrow.core.errors import SourceError
from windrow.dataset.sources.user_columns import table_of_items

__all__ = ["rows_of_samples"]


def rows_of_samples(samples: Sequence[Any], who: str) -> pa.Table:
    """A table of samples: dicts by column, tuples as ``item_0``, ``item_1`` ..., all else as ``item``.

    Raises
    ------
    SourceError
        If samples differ in kind, or make no columns.
    """
    try:
        return table_of_items([_row(sample) for sample in samples], who)
    except ValueError as error:
        raise SourceError(str(error)) from error


def _row(sample: Any) -> Any:
    if isinstance(sample, tuple) and hasattr(sample, "_asdict"):
        return sample._asdict()
    if isinstance(sample, (tuple, list)):
        return {f"item_{place}": value for place, value in enumerate(sample)}
    return dict(sample) if isinstance(sample, Mapping) else sample
