"""`TokenBudget`: steps of as many rows as have so many tokens on each shard, in place of a number of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from windrow.core.errors import PlanError
from windrow.core.integers import as_integer

Floats = NDArray[np.float64]

_MOST_TOKENS = 2**31


@dataclass(frozen=True)
class TokenBudget:
    """The most tokens that a batch of one shard has, in place of its number of rows.

    Each step takes as many rows of the epoch's order as `Balance` divides among shards so that none gets more tokens
    than this. All shards have the same number of steps, with ``equal=True`` or ``"pad"`` also at the epoch's end.

    Parameters
    ----------
    tokens
        The most tokens of a batch: the sum of its rows' lengths by the column of `Balance`. A row without tokens counts
        as one.
    long_rows
        What becomes of a row that has more tokens by itself. ``"error"``: a `PlanError` names its length. ``"drop"``:
        no shard gets it, and ``stats().run.left_out_rows`` counts it. ``"truncate"``: it is cut to its first
        ``tokens`` items, in the column of `Balance` and in every other column of lists that has as many items in this
        row, such as a mask or labels. Its cost is that of the row as cut. Transforms after the shuffle get it as cut.
    padded
        Count the tokens that a batch has once it is padded: its rows times its longest row. With microbatches, each is
        padded by itself, and ``tokens`` bounds their sum. Steps are then found by bisection: the rows of a step fit,
        and with one row more they would not.

    Raises
    ------
    PlanError
        If an argument is invalid, or with ``"truncate"`` if the column of `Balance` is not one of lists of any length.

    Examples
    --------
    >>> import pyarrow as pa, windrow
    >>> lengths = [9, 1, 1, 1, 4, 4, 2, 2, 8]
    >>> pipe = windrow.from_arrow(pa.table({"tokens": [[0] * length for length in lengths]})).repeat(1)
    >>> for shard in pipe.split(2):
    ...     batches = shard.iter_batches(token_budget=10, balance=windrow.Balance("tokens"))
    ...     print([[len(row) for row in batch["tokens"]] for batch in batches])
    [[9, 1], [8]]
    [[1, 1, 4, 4], [2, 2]]

    Batches of at most 8 tokens once they are padded, where the row of 9 is cut:

    >>> budget = windrow.TokenBudget(8, long_rows="truncate", padded=True)
    >>> for shard in pipe.split(2):
    ...     batches = shard.iter_batches(token_budget=budget, balance=windrow.Balance("tokens"))
    ...     print([[len(row) for row in batch["tokens"]] for batch in batches])
    [[8], [4, 2], [8]]
    [[1, 1, 1], [4, 2]]
    """

    tokens: int
    long_rows: Literal["error", "drop", "truncate"] = "error"
    padded: bool = False

    def __post_init__(self) -> None:
        tokens = as_integer(self.tokens)
        if tokens is None or not 1 <= tokens < _MOST_TOKENS:
            raise PlanError(
                f"token_budget={self.tokens!r} must be an integer from 1 to {_MOST_TOKENS - 1:,}: the most tokens of "
                "a batch"
            )
        object.__setattr__(self, "tokens", tokens)
        if self.long_rows not in ("error", "drop", "truncate"):
            raise PlanError(
                f"TokenBudget(long_rows={self.long_rows!r}) must be 'error', 'drop' or 'truncate'"
            )
        if not isinstance(self.padded, bool):
            raise PlanError(f"TokenBudget(padded={self.padded!r}) must be True or False")

    def clip(self, measures: NDArray[np.float32]) -> Floats:
        """(rows,) the lengths of rows as they are delivered: with ``"truncate"``, not above ``tokens``."""
        lengths = measures.astype(np.float64)
        return np.minimum(lengths, self.tokens) if self.long_rows == "truncate" else lengths

    def count(self, measures: NDArray[np.float32], column: str | None = None) -> Floats:
        """(rows,) the tokens of each row, at least 1; 0 for a row that has too many.

        With ``column``, which the error names, such a row is one unless it is to be left out.
        """
        tokens = np.maximum(self.clip(measures), 1)
        (long,) = np.nonzero(~(tokens <= self.tokens))
        if len(long) and column is not None and self.long_rows == "error":
            raise PlanError(
                f"column {column!r} has a row of {tokens[long[0]]:,.0f} tokens, more than token_budget="
                f"{self.tokens:,}: raise it, or give token_budget=windrow.TokenBudget({self.tokens}, "
                'long_rows="drop"), which leaves such rows out, or long_rows="truncate", which cuts their lists'
            )
        tokens[long] = 0
        return tokens
