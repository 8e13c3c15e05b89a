"""Converts batches to (features, label) tensors, as Ray's ``Dataset.to_torch`` does.

Columns are joined to one matrix, which is allocated once and filled column by column.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import pyarrow as pa

from windrow.core.errors import PlanError
from windrow.pipeline.delivery.tensors.column_tensors import column_tensors
from windrow.pipeline.delivery.tensors.device import Mover, Placement, resolve_placement
from windrow.pipeline.delivery.tensors.ragged import RaggedSpec
from windrow.pipeline.delivery.tensors.schema_check import (
    check_label,
    check_names,
    check_tensor_schema,
    is_ragged,
    tensor_dtype,
    tensor_shape,
)

if TYPE_CHECKING:
    import torch

Columns = Sequence[str] | Sequence[Sequence[str]] | Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class FeatureSpec:
    """The arguments of ``to_torch``; raises PlanError if their nesting does not match, or PyTorch is missing.

    Without ``feature_column_dtypes``, a matrix has the dtype to which torch promotes its columns.
    """

    label_column: str | None = None
    feature_columns: Columns | None = field(default=None, hash=False)
    label_column_dtype: torch.dtype | None = None
    feature_column_dtypes: Any = field(default=None, hash=False)
    unsqueeze_label_tensor: bool = True
    unsqueeze_feature_tensors: bool = True
    device: str | torch.device | None = None
    pin_memory: bool | None = None
    placement: Placement = field(init=False, repr=False, compare=False)
    ragged: RaggedSpec = field(
        init=False, repr=False, compare=False, default_factory=lambda: RaggedSpec(None)
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "placement", resolve_placement(self.device, self.pin_memory))
        object.__setattr__(self, "feature_columns", _frozen(self.feature_columns))
        check_label(self.label_column)
        if any(self.label_column in group for group in _groups(self.feature_columns)):
            raise PlanError(
                f"feature_columns holds the label {self.label_column!r}: leave it out of one of them"
            )
        _check_dtype(self.label_column_dtype, "label_column_dtype")
        self._dtypes()

    def _dtypes(self) -> list[torch.dtype | None]:
        """Return the requested dtype of each matrix; None: promoted."""
        columns, dtypes = self.feature_columns, self.feature_column_dtypes
        groups = len(_groups(columns))
        if isinstance(dtypes, Mapping):
            if not isinstance(columns, Mapping) or set(dtypes) != set(columns):
                raise PlanError(
                    "feature_column_dtypes is a dict: feature_columns must be a dict with the same keys"
                )
            each = [dtypes[key] for key in columns]
        elif isinstance(dtypes, (list, tuple)):
            if isinstance(columns, Mapping) or not _is_nested(columns) or len(dtypes) != groups:
                raise PlanError(
                    "feature_column_dtypes is a list: feature_columns must be a list of equally many lists"
                )
            each = list(dtypes)
        else:
            each = [dtypes] * groups
        for dtype in each:
            _check_dtype(dtype, "feature_column_dtypes")
        return each

    def matrices(self, schema: pa.Schema) -> list[tuple[list[str], torch.dtype | None]]:
        """Return the columns and the requested dtype of each matrix."""
        if self.feature_columns is None:
            names = [name for name in schema.names if name != self.label_column]
            return [(names, self._dtypes()[0])]
        groups = [list(group) for group in _groups(self.feature_columns)]
        return list(zip(groups, self._dtypes(), strict=True))

    def check(self, schema: pa.Schema, null_counts: Mapping[str, int | None]) -> None:
        """Raise PlanError, before anything is read, if columns cannot become matrices."""
        label = [] if self.label_column is None else [self.label_column]
        check_names(label, schema, "label_column")
        groups = self.matrices(schema)
        features = list(dict.fromkeys(name for names, _ in groups for name in names))
        check_names(features, schema, "feature_columns")
        check_tensor_schema(schema, null_counts, [*features, *label], lists=True)
        for names, dtype in groups:
            if not names:
                raise PlanError("there are no feature columns: the label is the only column")
            _check_shapes(names, schema, self.unsqueeze_feature_tensors)
            if dtype is None:
                _check_promotion(names, schema)


def _frozen(columns: Any) -> Any:
    """Copy the requested columns into tuples, and check their nesting."""
    if columns is None or (isinstance(columns, (Mapping, list, tuple)) and not columns):
        return None
    if isinstance(columns, Mapping):
        return {key: _frozen_list(names) for key, names in columns.items()}
    return tuple(map(_frozen_list, columns)) if _is_nested(columns) else _frozen_list(columns)


def _frozen_list(names: Any) -> tuple[str, ...]:
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise PlanError(
            f"feature_columns holds {names!r}: give a list of names, a list of such lists, or a dict of them"
        )
    if not names:
        raise PlanError("feature_columns holds an empty list: name at least one column for each tensor")
    return tuple(names)


def _is_nested(columns: Any) -> bool:
    return isinstance(columns, (list, tuple)) and any(isinstance(item, (list, tuple)) for item in columns)


def _groups(columns: Any) -> list[tuple[str, ...]]:
    if columns is None:
        return [()]
    if isinstance(columns, Mapping):
        return list(columns.values())
    return list(columns) if _is_nested(columns) else [columns]


def _check_dtype(dtype: object, argument: str) -> None:
    import torch

    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise PlanError(f"{argument} holds {dtype!r}, which is not a torch.dtype such as torch.float32")


def _check_shapes(names: list[str], schema: pa.Schema, unsqueeze: bool) -> None:
    shapes = [_shape(schema.field(name).type) for name in names]
    if len(names) == 1 or (unsqueeze and len(set(shapes)) == 1):
        return
    if not unsqueeze and all(shapes) and len({shape[1:] for shape in shapes}) == 1:
        return
    _raise_shapes(names, shapes, unsqueeze)


def _shape(arrow_type: pa.DataType) -> tuple[int | str, ...]:
    """The shape of one row; batches tell the length of lists."""
    if is_ragged(arrow_type):
        return ("length", *tensor_shape(arrow_type.value_type))
    return tensor_shape(arrow_type)


def _raise_shapes(names: list[str], shapes: Sequence[tuple[int | str, ...]], unsqueeze: bool) -> NoReturn:
    listed = ", ".join(
        f"{name!r} (rows{''.join(f', {n}' for n in s)})" for name, s in zip(names, shapes, strict=True)
    )
    fix = "give each shape its own list in feature_columns"
    if not unsqueeze:
        fix = "give unsqueeze_feature_tensors=True, or each column its own list in feature_columns"
    raise PlanError(f"these feature columns do not join to one tensor: {listed}; {fix}")


def _check_promotion(names: list[str], schema: pa.Schema) -> None:
    import torch

    try:
        _common_dtype(torch.from_numpy(np.empty(0, _dtype(schema.field(name).type))) for name in names)
    except RuntimeError as exc:
        listed = ", ".join(f"{name!r} ({schema.field(name).type})" for name in names)
        raise PlanError(
            f"torch has no common dtype for the feature columns {listed}: give feature_column_dtypes"
        ) from exc


def _dtype(arrow_type: pa.DataType) -> np.dtype[Any] | None:
    return tensor_dtype(arrow_type.value_type if is_ragged(arrow_type) else arrow_type)


def _common_dtype(tensors: Iterable[torch.Tensor]) -> torch.dtype:
    import torch

    return reduce(torch.promote_types, (tensor.dtype for tensor in tensors))


def to_features(batch: pa.RecordBatch, spec: FeatureSpec, mover: Mover) -> Any:
    """Convert a batch to (features, label), with features nested like ``feature_columns``, and have it moved."""
    matrices = [_build_matrix(batch, names, dtype, spec) for names, dtype in spec.matrices(batch.schema)]
    features: Any = matrices[0]
    if isinstance(spec.feature_columns, Mapping):
        features = dict(zip(spec.feature_columns, matrices, strict=True))
    elif _is_nested(spec.feature_columns):
        features = matrices
    return mover.move((features, _label(batch, spec)))


def _label(batch: pa.RecordBatch, spec: FeatureSpec) -> torch.Tensor | None:
    if spec.label_column is None:
        return None
    columns, _ = column_tensors(batch, [spec.label_column], spec.ragged)
    label = columns[spec.label_column]
    if spec.label_column_dtype is not None:
        label = label.to(spec.label_column_dtype)
    return label.unsqueeze(1) if spec.unsqueeze_label_tensor else label


def _build_matrix(
    batch: pa.RecordBatch, names: list[str], dtype: torch.dtype | None, spec: FeatureSpec
) -> torch.Tensor:
    """Join columns along the second dimension, to which each (rows, ...) adds a 1 before unless that is unwanted."""
    import torch

    columns, _ = column_tensors(batch, names, spec.ragged)
    parts = [columns[name] for name in names]
    if spec.unsqueeze_feature_tensors:
        parts = [part.unsqueeze(1) for part in parts]
    if len({part.shape[2:] for part in parts}) > 1:
        shapes = [tuple(columns[name].shape[1:]) for name in names]
        _raise_shapes(names, shapes, spec.unsqueeze_feature_tensors)
    shape = list(parts[0].shape)
    if len(shape) > 1:
        shape[1] = sum(part.shape[1] for part in parts)
    stays_pinned = spec.placement.pin and spec.placement.device is None
    matrix = torch.empty(shape, dtype=dtype or _common_dtype(parts), pin_memory=stays_pinned)
    if len(shape) == 1:
        return matrix.copy_(parts[0])
    start = 0
    for part in parts:
        matrix.narrow(1, start, part.shape[1]).copy_(part)
        start += part.shape[1]
    return matrix
