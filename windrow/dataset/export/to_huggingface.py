"""to_huggingface: rows as a Hugging Face dataset."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from windrow.core.errors import PlanError
from windrow.core.optional_dependencies import require
from windrow.dataset.export.collect import collect
from windrow.dataset.logical_plan import LogicalPlan
from windrow.pipeline.delivery.to_numpy import column_to_numpy, permutation_of
from windrow.pipeline.plan.job import Job

__all__ = ["to_huggingface"]


def to_huggingface(plan: LogicalPlan, job: Job, limit: int | None) -> Any:
    """Collect the rows of one pass and wrap them as a ``datasets.Dataset``."""
    library = require("datasets", "huggingface", "to_huggingface()")
    table = collect(plan, job, limit, "to_huggingface()")
    columns = {
        name: pa.chunked_array([_plain(chunk) for chunk in column.chunks], _plain_type(column.type))
        for name, column in zip(table.column_names, table.columns, strict=True)
    }
    try:
        return library.Dataset(pa.table(columns))
    except (ValueError, TypeError, NotImplementedError) as error:
        raise PlanError(
            f"to_huggingface(): datasets has no type for one of these columns ({error}): {table.schema}; "
            "cast it in map_batches, or leave it out"
        ) from error


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return kind.value_type
    if not isinstance(kind, pa.FixedShapeTensorType):
        return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    plain = kind.value_type
    for dimension in reversed(permutation_of(kind)):
        plain = pa.list_(plain, kind.shape[dimension])
    return plain


def _plain(array: pa.Array) -> pa.Array:
    kind = array.type
    if pa.types.is_dictionary(kind):
        return array.dictionary_decode()
    if not isinstance(kind, pa.FixedShapeTensorType):
        return array.storage if isinstance(kind, pa.BaseExtensionType) else array
    values = column_to_numpy(array, writable=False)
    if values.dtype == object:
        return pa.array([None if row is None else row.tolist() for row in values], _plain_type(kind))
    nested = pa.array(np.ascontiguousarray(values).reshape(-1), kind.value_type)
    for width in reversed(values.shape[1:]):
        nested = pa.FixedSizeListArray.from_arrays(nested, width)
    return nested
