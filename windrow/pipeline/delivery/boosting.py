"""Streams batches into XGBoost and LightGBM."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.errors import PlanError
from windrow.core.optional_dependencies import require
from windrow.pipeline.delivery.tensors.schema_check import check_label, check_names
from windrow.pipeline.delivery.to_numpy import column_to_numpy

__all__ = ["BoostingColumns", "make_lightgbm_dataset", "make_xgboost_iterator"]


class _Rows(Protocol):
    def iter_batches(self, batch_size: int, *, batch_format: Any) -> Iterator[Any]: ...


@dataclass(frozen=True)
class BoostingColumns:
    """Which columns are features, label and weight."""

    features: Sequence[str] | None
    label: str | None
    weight: str | None

    def __post_init__(self) -> None:
        check_label(self.label)
        if isinstance(self.features, str):
            raise PlanError(f"feature_columns={self.features!r} must be a list of columns")

    def select(self, table: pa.Table) -> pa.Table:
        """The features of a batch."""
        others = [name for name in (self.label, self.weight) if name is not None]
        for name in others:
            check_names([name], table.schema, "label_column" if name == self.label else "weight_column")
        if self.features is None:
            return table.drop_columns(others)
        check_names(self.features, table.schema, "feature_columns")
        return table.select(list(self.features))

    def named(self, table: pa.Table) -> dict[str, NDArray[Any]]:
        """The label and the weight of a batch, as far as there are columns of them."""
        columns = {"label": self.label, "weight": self.weight}
        return {kind: _numbers(table, name) for kind, name in columns.items() if name is not None}


def _numbers(table: pa.Table, name: str) -> NDArray[Any]:
    values = column_to_numpy(table.column(name).combine_chunks(), writable=False)
    try:
        # None among integers becomes NaN
        return values if values.dtype.kind in "biuf" else values.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise PlanError(
            f"column {name!r} ({table.schema.field(name).type}) does not hold numbers: leave it out with "
            "feature_columns=, or convert it in map_batches"
        ) from error


def _matrix(table: pa.Table) -> NDArray[Any]:
    columns = [_numbers(table, name) for name in table.column_names]
    # LightGBM samples doubles only
    matrix = np.empty((table.num_rows, len(columns)), np.float64)
    for at, column in enumerate(columns):
        matrix[:, at] = column
    return matrix


def make_xgboost_iterator(
    rows: _Rows, columns: BoostingColumns, batch_rows: int, cache_prefix: str | None
) -> Any:
    """An ``xgboost.DataIter`` each of whose passes reads the rows again."""
    xgboost = require("xgboost", "xgboost", "to_xgboost()")

    class BatchIter(xgboost.DataIter):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            self._batches: Iterator[Any] | None = None
            super().__init__(cache_prefix=cache_prefix)

        def next(self, input_data: Any) -> bool:
            if self._batches is None:
                self._batches = rows.iter_batches(batch_rows, batch_format="pyarrow")
            table = next(self._batches, None)
            if table is None:
                return False
            input_data(data=columns.select(table), **columns.named(table))
            return True

        def reset(self) -> None:
            self._batches = None

    return BatchIter()


def make_lightgbm_dataset(
    rows: _Rows, columns: BoostingColumns, batch_rows: int, count: int, arguments: Mapping[str, Any]
) -> Any:
    """A constructed ``lightgbm.Dataset``; LightGBM asks for sampled rows in order, then for all."""
    lightgbm = require("lightgbm", "lightgbm", "to_lightgbm()")

    class Batches(lightgbm.Sequence):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            self.batch_size = batch_rows
            # label and weight of each batch seen
            self.named: dict[int, dict[str, NDArray[Any]]] = {}
            self.names: list[str] = []
            self._rewind()

        def __len__(self) -> int:
            return count

        def __getitem__(self, index: Any) -> NDArray[Any]:
            if isinstance(index, slice):
                start, stop, _ = index.indices(count)
                whole = [self._batch(at) for at in range(start // batch_rows, -(-stop // batch_rows))]
                first = start // batch_rows * batch_rows
                return np.concatenate(whole)[start - first : stop - first]
            if isinstance(index, list):
                return np.stack([self[each] for each in index])
            at, row = divmod(int(index), batch_rows)
            values: NDArray[Any] = self._batch(at)[row]
            return values

        def _rewind(self) -> None:
            # a shard has one iterator at a time
            self._batches = iter(())
            self._batches = rows.iter_batches(batch_rows, batch_format="pyarrow")
            self._at = -1
            self._matrix = np.empty((0, 0))

        def _batch(self, at: int) -> NDArray[Any]:
            if at < self._at:
                self._rewind()
            while self._at < at:
                table: pa.Table = next(self._batches)
                self._at += 1
                features = columns.select(table)
                self.names = features.column_names
                self.named[self._at] = columns.named(table)
                # batches that are passed over need no matrix
                self._matrix = _matrix(features) if self._at == at else self._matrix
            return self._matrix

    batches = Batches()
    batches[0:1]  # raises for bad columns as windrow does, and names the features
    dataset = lightgbm.Dataset(
        batches,
        feature_name=arguments.get("feature_name", batches.names),
        **{name: value for name, value in arguments.items() if name != "feature_name"},
    )
    dataset.construct()
    for kind, setter in (("label", dataset.set_label), ("weight", dataset.set_weight)):
        parts = [named[kind] for _, named in sorted(batches.named.items()) if kind in named]
        if parts:
            setter(np.concatenate(parts))
    return dataset
