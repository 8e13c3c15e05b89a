"""Converts batches to JAX arrays, one per column (``iter_jax_batches``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.errors import PlanError
from windrow.core.optional_dependencies import require
from windrow.pipeline.delivery.tensors.column_tensors import column_arrays
from windrow.pipeline.delivery.tensors.ragged import RaggedSpec
from windrow.pipeline.delivery.tensors.schema_check import check_names, check_tensor_schema


@dataclass(frozen=True)
class JaxSpec:
    """The arguments of ``iter_jax_batches``; raises PlanError if they are invalid, or JAX is missing."""

    dtypes: Any = None
    sharding: Any = None
    jax: Any = field(init=False, repr=False, compare=False)
    ragged: RaggedSpec = field(
        init=False, default_factory=lambda: RaggedSpec(None, fix="pad them to one length in map_batches")
    )

    def __post_init__(self) -> None:
        jax = require("jax", "jax", "iter_jax_batches()")
        object.__setattr__(self, "jax", jax)
        for dtype in _values(self.dtypes):
            try:
                jax.numpy.dtype(dtype)
            except TypeError as error:
                raise PlanError(
                    f"dtypes={self.dtypes!r}: {dtype!r} is not a dtype of NumPy or JAX"
                ) from error
        for sharding in _values(self.sharding):
            if not isinstance(sharding, jax.sharding.Sharding):
                raise PlanError(
                    f"sharding={self.sharding!r} must be a jax.sharding.Sharding, or a dict of them by column"
                )

    def check(self, schema: pa.Schema, null_counts: Mapping[str, int | None]) -> None:
        """Raise PlanError, before anything is read, if columns cannot become arrays."""
        for name, given in (("dtypes", self.dtypes), ("sharding", self.sharding)):
            if isinstance(given, Mapping):
                check_names(given, schema, name)
        check_tensor_schema(schema, null_counts, lists=True)


def to_jax(batch: pa.RecordBatch, spec: JaxSpec) -> dict[str, Any]:
    """Convert a batch to a dict of arrays, global ones where a sharding covers several processes."""
    arrays, _ = column_arrays(batch, batch.schema.names, spec.ragged)
    cast = {name: _cast(array, name, spec) for name, array in arrays.items()}
    if spec.sharding is None:
        # one call for all columns
        return spec.jax.device_put(cast)
    return {name: _place(array, name, spec) for name, array in cast.items()}


def _cast(array: NDArray[Any], name: str, spec: JaxSpec) -> NDArray[Any]:
    given = _of(spec.dtypes, name)
    if given is not None:
        return array.astype(spec.jax.numpy.dtype(given), copy=False)
    # 32 bits for 64, unless jax_enable_x64 is set
    dtype = spec.jax.dtypes.canonicalize_dtype(array.dtype)
    if dtype == array.dtype:
        return array
    if array.dtype.kind in "iu" and array.size:
        low, high, limits = array.min(), array.max(), np.iinfo(dtype)
        if low < limits.min or high > limits.max:
            raise PlanError(
                f"column {name!r} ({array.dtype}) has values from {low:,} to {high:,}, which JAX would store as "
                f"{dtype} and change: call jax.config.update('jax_enable_x64', True), give "
                f"dtypes={{{name!r}: ...}}, or leave the column out"
            )
    return array.astype(dtype)


def _place(array: NDArray[Any], name: str, spec: JaxSpec) -> Any:
    sharding = _of(spec.sharding, name)
    if sharding is None:
        return spec.jax.device_put(array)
    try:
        return spec.jax.make_array_from_process_local_data(sharding, array)
    except (IndexError, ValueError) as error:
        raise PlanError(
            f"column {name!r}, with shape {array.shape} in this process, cannot be laid out as {sharding}: use a "
            f"batch_size that its devices divide, and drop_last=True for the last batch. JAX says: {error}"
        ) from error


def _of(given: Any, name: str) -> Any:
    return given.get(name) if isinstance(given, Mapping) else given


def _values(given: Any) -> list[Any]:
    each = given.values() if isinstance(given, Mapping) else [given]
    return [value for value in each if value is not None]
