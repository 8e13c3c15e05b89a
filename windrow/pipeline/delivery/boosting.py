"""`to_xgboost` and `to_lightgbm`: data for gradient boosting, read in several passes and never held as a whole."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.errors import PlanError
from windrow.core.optional_dependencies import require
from windrow.pipeline.delivery.delivery import check_number
from windrow.pipeline.delivery.iteration_methods import Deliverable
from windrow.pipeline.delivery.tensors.schema_check import check_label, check_names
from windrow.pipeline.delivery.to_numpy import column_to_numpy


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


def _make_xgboost_iterator(
    rows: Deliverable, columns: BoostingColumns, batch_rows: int, cache_prefix: str | None
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


def _make_lightgbm_dataset(
    rows: Deliverable, columns: BoostingColumns, batch_rows: int, count: int, arguments: Mapping[str, Any]
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
            return self._batch(at)[row]

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


class BoostingMethods(Deliverable):
    """The methods of datasets and their shards that feed gradient boosting."""

    def to_xgboost(
        self,
        label_column: str | None = None,
        *,
        feature_columns: Sequence[str] | None = None,
        weight_column: str | None = None,
        batch_size: int = 65_536,
        cache_prefix: str | None = None,
    ) -> Any:
        """Return an ``xgboost.DataIter``, for ``QuantileDMatrix``, ``ExtMemQuantileDMatrix`` and ``DMatrix``.

        XGBoost reads the rows in several passes. Columns go to it as Arrow: nulls are missing values, and
        dictionary columns are categories with ``enable_categorical=True``. In a job of several processes, each
        makes its matrix of its shard, ``dataset.split(n)[rank]``.

        Parameters
        ----------
        label_column, weight_column
            Columns of the label and of the rows' weights; None: none.
        feature_columns
            The features, in this order; None: all other columns.
        batch_size
            Rows that XGBoost gets at once.
        cache_prefix
            Where XGBoost keeps its pages, for matrices in external memory.

        Raises
        ------
        PlanError
            If XGBoost is not installed, a column does not exist, or this is a shard of a pipeline, whose passes
            have other orders.

        Examples
        --------
        >>> import windrow, xgboost
        >>> rows = windrow.from_items([{"x": float(i), "y": i % 2} for i in range(8)])
        >>> matrix = xgboost.QuantileDMatrix(rows.to_xgboost("y"))
        >>> matrix.num_row(), matrix.num_col(), matrix.get_label().tolist()
        (8, 1, [0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0])
        """
        require("xgboost", "xgboost", "to_xgboost()")
        self._check_passes("to_xgboost()")
        columns = BoostingColumns(feature_columns, label_column, weight_column)
        return _make_xgboost_iterator(self, columns, check_number("batch_size", batch_size, 1), cache_prefix)

    def to_lightgbm(
        self,
        label_column: str | None = None,
        *,
        feature_columns: Sequence[str] | None = None,
        weight_column: str | None = None,
        batch_size: int = 65_536,
        **arguments: Any,
    ) -> Any:
        """Return a ``lightgbm.Dataset`` of all rows, constructed in two passes.

        LightGBM holds each value as the number of its bin, of which most take one byte. The rows themselves are
        held one batch at a time.

        Parameters
        ----------
        label_column, feature_columns, weight_column
            As for `to_xgboost`. Features are numbers or booleans; nulls are missing values.
        batch_size
            Rows in memory at once.
        **arguments
            Of ``lightgbm.Dataset``, such as ``params``, ``reference`` and ``categorical_feature``.

        Raises
        ------
        PlanError
            As for `to_xgboost`, and if a feature is not a number.

        Examples
        --------
        >>> import windrow
        >>> rows = windrow.from_items([{"x": float(i), "y": i % 2} for i in range(100)])
        >>> data = rows.to_lightgbm("y", params={"verbose": -1})
        >>> data.num_data(), data.feature_name, data.get_label()[:3].tolist()
        (100, ['x'], [0.0, 1.0, 0.0])
        """
        require("lightgbm", "lightgbm", "to_lightgbm()")
        self._check_passes("to_lightgbm()")
        columns = BoostingColumns(feature_columns, label_column, weight_column)
        rows = check_number("batch_size", batch_size, 1)
        return _make_lightgbm_dataset(self, columns, rows, self._row_count(), arguments)

    @abstractmethod
    def _repeats_passes(self) -> bool:
        """Whether every pass has the same rows in the same order."""

    @abstractmethod
    def _row_count(self) -> int:
        """Number of rows of a pass."""

    def _check_passes(self, what: str) -> None:
        if not self._repeats_passes():
            raise PlanError(
                f"{what} reads the rows in several passes, which must be the same, and the epochs of a pipeline are "
                "not: call it on a Dataset, or on a shard of Dataset.split()"
            )
