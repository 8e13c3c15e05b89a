"""A dataset of pandas DataFrames."""

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
    NaN in a column of NumPy floats stays NaN; in every other column it is null.

    Parameters
    ----------
    frames
        A DataFrame, or several with the same columns, whose rows follow one another. An index
        that does more than count rows becomes columns, before the others: by its name, else
        ``"index"``.
    target_block_bytes
        Blocks have about so many bytes: an integer, or a string such as ``"64MiB"``.

    Raises
    ------
    PlanError
        If a column cannot be held by Arrow; names it.
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
