"""to_tf: batches as a ``tf.data.Dataset``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.core.errors import PlanError, TransformError
from windrow.core.optional_dependencies import require
from windrow.pipeline.delivery.tensors.schema_check import (
    check_label,
    check_names,
    check_tensor_schema,
    tensor_dtype,
    tensor_shape,
)
from windrow.pipeline.plan.head import find_schema
from windrow.pipeline.plan.job import Job


def to_tf(
    read_batches: Callable[[], Iterator[Any]],
    job: Job,
    *,
    feature_columns: Sequence[str] | None,
    label_column: str | None,
) -> Any:
    """Return a ``tf.data.Dataset`` each of whose iterations is over the NumPy batches of one ``read_batches()``."""
    check_label(label_column)
    tensorflow = require("tensorflow", "tensorflow", "to_tf()")
    schema = find_schema(job)
    features = _features(schema, feature_columns, label_column)
    names = features if label_column is None else [*features, label_column]
    _check(schema, dict(job.source.null_counts) if job.delivers_stored_rows else {}, names)
    specs = {name: _spec(schema.field(name).type, tensorflow) for name in names}

    def arrange(columns: dict[str, Any]) -> Any:
        chosen = {name: columns[name] for name in features}
        return chosen if label_column is None else (chosen, columns[label_column])

    def read() -> Iterator[Any]:
        for batch in read_batches():
            yield arrange({name: _value(batch[name], name, specs[name]) for name in names})

    return tensorflow.data.Dataset.from_generator(read, output_signature=arrange(specs))


def _features(schema: pa.Schema, columns: Sequence[str] | None, label: str | None) -> list[str]:
    if label is not None:
        check_names([label], schema, "label_column")
    if columns is None:
        return [name for name in schema.names if name != label]
    check_names(columns, schema, "feature_columns")
    return list(columns)


def _check(schema: pa.Schema, nulls: dict[str, int | None], names: Sequence[str]) -> None:
    if not names:
        raise PlanError("to_tf() has no columns to deliver: name some in feature_columns=")
    check_tensor_schema(schema, nulls, [name for name in names if not _is_text(schema.field(name).type)])


def _is_text(kind: pa.DataType) -> bool:
    types = pa.types
    return any(
        is_kind(kind)
        for is_kind in (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    )


def _spec(kind: pa.DataType, tensorflow: Any) -> Any:
    if _is_text(kind):
        return tensorflow.TensorSpec((None,), tensorflow.string)
    dtype = tensorflow.as_dtype(tensor_dtype(kind))
    return tensorflow.TensorSpec((None, *tensor_shape(kind)), dtype)


def _value(values: Any, name: str, spec: Any) -> Any:
    """Return a column as an array; raise if it has nulls that the schema did not show."""
    if values.dtype == object:
        if any(value is None for value in values):
            raise TransformError(
                f"to_tf(): column {name!r} has nulls, which tensors cannot hold: fill them in map_batches"
            )
        if spec.dtype.name != "string":
            values = np.stack(list(values))
    return values
