"""from_pandas: pandas DataFrames as a Dataset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from windrow.dataset.dataset import Dataset
from windrow.dataset.sources.in_memory import dataset_of_tables
from windrow.dataset.sources.user_columns import table_of_frame

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["from_pandas"]


def from_pandas(
    frames: pd.DataFrame | Sequence[pd.DataFrame], *, target_block_bytes: int | str = "64MiB"
) -> Dataset:
    """Return a dataset of pandas DataFrames.

    Numbers without nulls are not copied: do not change the frames while the dataset is in use.
    NaN stays NaN in columns of NumPy floats and becomes null in all others.

    Parameters
    ----------
    frames
        A DataFrame, or a list of DataFrames with the same columns, which are concatenated. An
        index, unless it is an unnamed RangeIndex, becomes the first column or columns, called by
        its name, else ``"index"``.
    target_block_bytes
        Approximate size of a block: an integer, or a string such as ``"64MiB"``.

    Raises
    ------
    PlanError
        If Arrow cannot hold a column; the message names it.
    SourceError
        If frames differ in columns or types.

    Examples
    --------
    >>> import pandas as pd, windrow
    >>> windrow.from_pandas(pd.DataFrame({"x": [1, 2], "y": ["a", None]})).take()
    [{'x': 1, 'y': 'a'}, {'x': 2, 'y': None}]
    """
    parts = frames if isinstance(frames, (list, tuple)) else [frames]
    tables = [table_of_frame(frame, "from_pandas") for frame in parts]
    return dataset_of_tables(tables, "from_pandas", target_block_bytes)
