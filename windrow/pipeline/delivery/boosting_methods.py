"""`to_xgboost` and `to_lightgbm`: data for gradient boosting, read in several passes and never held as a whole."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from windrow.core.errors import PlanError
from windrow.core.optional_dependencies import require
from windrow.pipeline.delivery.iteration_methods import Deliverable, check_number

__all__ = ["BoostingMethods"]


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
        from windrow.pipeline.delivery.boosting import BoostingColumns, make_xgboost_iterator

        self._check_passes("to_xgboost()")
        columns = BoostingColumns(feature_columns, label_column, weight_column)
        return make_xgboost_iterator(self, columns, check_number("batch_size", batch_size, 1), cache_prefix)

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
        from windrow.pipeline.delivery.boosting import BoostingColumns, make_lightgbm_dataset

        self._check_passes("to_lightgbm()")
        columns = BoostingColumns(feature_columns, label_column, weight_column)
        rows = check_number("batch_size", batch_size, 1)
        return make_lightgbm_dataset(self, columns, rows, self._row_count(), arguments)

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
