"""What counts as an integer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from windrow.core.errors import PlanError
from windrow.dataset.checks import check_count, check_seed
from windrow.dataset.world import find_place
from windrow.pipeline.delivery import Delivery
from windrow.pipeline.integers import as_integer


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3)])
def test_integers_of_numpy_are_integers(value: Any) -> None:
    for taken in (as_integer(value), check_count(value, "n"), check_seed(value)):
        assert taken == 3
        assert type(taken) is int
    assert find_place(value, value + 1) == (3, 4)
    assert Delivery(value, False, value, iter).batch_rows == 3


@pytest.mark.parametrize("value", [True, 3.0, "3", None, np.float64(3)])
def test_all_else_is_none(value: Any) -> None:
    assert as_integer(value) is None
    with pytest.raises(PlanError, match="n="):
        check_count(value, "n")
