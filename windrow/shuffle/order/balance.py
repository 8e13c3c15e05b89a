"""`Balance`: how the rows of a step are divided among shards by what they cost."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache, reduce
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from windrow.core.errors import PlanError
from windrow.core.integers import as_integer
from windrow.shuffle.order.length_groups import check_group_steps
from windrow.shuffle.order.token_budget import TokenBudget

_MAX_MICROBATCHES = 2**16
_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
_FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {"min": np.minimum, "max": np.maximum}


@dataclass(frozen=True)
class Balance:
    """Divide the rows of each step among shards, and microbatches, so that they cost about the same.

    The rows of a step over all shards stay those that they are without balance. Which shard gets which of them depends
    on their costs and on the number of shards alone, so it is the same on any cluster and after any resume.

    Parameters
    ----------
    column
        What a row is measured by: a column of numbers, or of lists, text or binary values, whose length counts (items,
        bytes). With ``pack``, one of the columns of lists that it packs: a sequence costs the sum over the parts of
        documents in it, of which ``length`` is the number of tokens, and padding costs nothing.
    cost
        The cost of a row, as a formula of ``length``, the column's number or length: numbers, ``+``, ``-``, ``*``,
        ``/``, ``**``, ``min(a, b)``, ``max(a, b)`` and parentheses. ``"length ** 2"`` stands for attention,
        ``"length * min(length, 4096)"`` for that within a sliding window, and ``"12 * 4096 * length + length ** 2"``
        for a whole transformer.
    rows
        ``"equal"``: each shard gets as many rows as without balance. ``"free"``: as many as make costs even, at least
        one where there are enough.
    microbatches
        Each batch is divided into so many parts of about the same cost, and iterators yield lists of them, as for
        gradient accumulation. A batch of fewer rows has fewer parts.

    Raises
    ------
    PlanError
        If an argument is invalid.

    Notes
    -----
    Rows come by falling cost, each to the shard of least cost that has room. Then the most expensive shard exchanges
    rows with others as long as that helps. On log-normal lengths (sigma 1) and 8 shards of 8 rows, the most expensive
    shard costs 1.001 times what is unavoidable with ``"free"``, and 1.025 times with ``"equal"``. Unavoidable
    is the mean of the shards, or the most expensive row if that is more.

    Examples
    --------
    >>> import pyarrow as pa, windrow
    >>> lengths = [9, 1, 1, 1, 4, 4, 2, 2]
    >>> pipe = windrow.from_arrow(pa.table({"tokens": [[0] * length for length in lengths]})).repeat(1)
    >>> for shard in pipe.split(2):
    ...     batches = shard.iter_batches(4, balance=windrow.Balance("tokens", rows="free"))
    ...     print([[len(row) for row in batch["tokens"]] for batch in batches])
    [[9, 1, 2]]
    [[1, 1, 4, 4, 2]]
    """

    column: str
    cost: str = "length"
    rows: Literal["equal", "free"] = "equal"
    microbatches: int = 1
    # given as ``token_budget``, by which steps then end
    budget: TokenBudget | None = field(default=None, init=False, repr=False)
    # given as ``group_by_length``: of how many steps the rows are sorted by length
    group_steps: int | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.column, str) or not self.column:
            raise PlanError(f"Balance(column={self.column!r}) must be a column's name")
        if self.rows not in ("equal", "free"):
            raise PlanError(f"Balance(rows={self.rows!r}) must be 'equal' or 'free'")
        count = as_integer(self.microbatches)
        if count is None or not 1 <= count <= _MAX_MICROBATCHES:
            raise PlanError(
                f"Balance(microbatches={self.microbatches!r}) must be an integer from 1 to {_MAX_MICROBATCHES:,}"
            )
        object.__setattr__(self, "microbatches", count)
        self.costs(np.arange(3, dtype=np.float32))

    def with_budget(self, token_budget: int | TokenBudget) -> Balance:
        """The same for steps that end by their tokens, whose batches have any number of rows."""
        budget = token_budget if isinstance(token_budget, TokenBudget) else TokenBudget(token_budget)
        found = replace(self, rows="free")
        object.__setattr__(found, "budget", budget)
        return found

    def with_groups(self, group_by_length: object) -> Balance:
        """The same for rows that are sorted by length within groups of so many steps."""
        found = replace(self)
        object.__setattr__(found, "group_steps", check_group_steps(group_by_length))
        return found

    @property
    def divides_evenly(self) -> bool:
        """Whether all full batches have the same number of rows, and are not divided."""
        return self.rows == "equal" and self.microbatches == 1

    def costs(self, measures: NDArray[Any]) -> NDArray[np.float64]:
        """(rows,) the cost of each row as it is delivered, given its number or length.

        >>> Balance("tokens", "2 * length + length ** 2").costs(np.array([1, 10], np.float32)).tolist()
        [3.0, 120.0]
        """
        lengths = measures.astype(np.float64) if self.budget is None else self.budget.clip(measures)
        tree = _parse(self.cost) if isinstance(self.cost, str) else None
        if tree is None:
            raise _make_error(self.cost)
        with np.errstate(all="ignore"):
            found: Any = _evaluate(tree, lengths, self.cost)
        costs = np.broadcast_to(np.asarray(found, np.float64), lengths.shape)
        wrong = np.flatnonzero(~(np.isfinite(costs) & (costs >= 0)))
        if len(wrong):
            at = int(wrong[0])
            raise PlanError(
                f"the cost {self.cost!r} of a row whose length is {lengths[at]:g} (column {self.column!r}) is "
                f"{costs[at]:g}: costs must be numbers of 0 or more"
            )
        return costs


# kept, since CPython 3.11 can fail to parse in several threads at once
@lru_cache(64)
def _parse(formula: str) -> ast.expr | None:
    try:
        return ast.parse(formula.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _evaluate(node: ast.expr, length: NDArray[np.float64], formula: str) -> Any:
    if isinstance(node, ast.Name) and node.id == "length":
        return length
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        return float(node.value)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = (_evaluate(each, length, formula) for each in (node.left, node.right))
        return _OPERATORS[type(node.op)](np.float64(left), np.float64(right))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_evaluate(node.operand, length, formula)
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and len(node.args) > 1
        and not node.keywords
    ):
        function = _FUNCTIONS.get(node.func.id)
        if function is not None:
            return reduce(function, [_evaluate(each, length, formula) for each in node.args])
    raise _make_error(formula)


def _make_error(formula: object) -> PlanError:
    return PlanError(
        f"Balance(cost={formula!r}) must be a formula of length and numbers with + - * / **, min(), max() and "
        "parentheses, such as 'length ** 2'"
    )
