"""The arguments of `Balance`, and the costs that follow from them."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

import windrow


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1,), "must be a column's name"),
        (("",), "must be a column's name"),
        (("x", "lengths"), "must be a formula of length"),
        (("x", "length."), "must be a formula of length"),
        (("x", "__import__('os').name"), "must be a formula of length"),
        (("x", "length + 'a'"), "must be a formula of length"),
        (("x", 3), "must be a formula of length"),
        (("x", "min(length)"), "must be a formula of length"),
        (("x", "min(*length, 1)"), "must be a formula of length"),
        (("x", "max(length, key=1)"), "must be a formula of length"),
        (("x", "abs(length)"), r"min\(\), max\(\)"),
        (("x", "(" * 10_000), "must be a formula of length"),
        (("x", "length - 1"), "costs must be numbers of 0 or more"),
        (("x", "1 / length"), "costs must be numbers of 0 or more"),
        (("x", "length", "even"), "must be 'equal' or 'free'"),
        (("x", "length", "free", 0), "must be an integer from 1 to 65,536"),
        (("x", "length", "free", 1.5), "must be an integer from 1 to 65,536"),
    ],
)
def test_invalid_arguments(arguments: Any, message: str) -> None:
    with pytest.raises(windrow.PlanError, match=message):
        windrow.Balance(*arguments)


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        ("length", [0, 1, 3]),
        (" 2 * length ** 2 + 1 ", [1, 3, 19]),
        ("max(min(length, 2), 1)", [1, 1, 2]),
        ("length * min(length, 2, 5)", [0, 1, 6]),
        ("(length + 1) / 2", [0.5, 1, 2]),
        ("7", [7, 7, 7]),
        ("-(-length)", [0, 1, 3]),
    ],
)
def test_costs(formula: str, expected: list[float]) -> None:
    balance = windrow.Balance("x", formula)
    assert balance.costs(np.array([0, 1, 3], np.float32)).tolist() == expected
    assert pickle.loads(pickle.dumps(balance)) == balance
    assert hash(balance) == hash(windrow.Balance("x", formula))
