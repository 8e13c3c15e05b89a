"""Keys: every input matters, and different inputs give different keys."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.shuffle.examples import by_day
from windrow.shuffle.order import keys
from windrow.shuffle.order.keys import KEY_BYTES, derive_key

inputs = st.tuples(st.integers(), st.text(), st.integers(), st.integers())


@by_day(30)
@given(inputs)
def test_a_key_is_a_function_of_its_inputs(given_inputs: tuple[int, str, int, int]) -> None:
    key = derive_key(*given_inputs)
    assert len(key) == KEY_BYTES
    assert derive_key(*given_inputs) == key


@by_day(30)
@given(inputs, inputs)
def test_different_inputs_give_different_keys(
    left: tuple[int, str, int, int], right: tuple[int, str, int, int]
) -> None:
    assert (derive_key(*left) == derive_key(*right)) == (left == right)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((0, "rows", 1, 0), (1, "rows", 0, 0)),
        ((0, "rows", 1, 23), (0, "rows", 12, 3)),
        ((1, "rows", 12, 0), (11, "rows", 2, 0)),
        ((1, "rows", 0, 0), (-1, "rows", 0, 0)),
        ((0, "rows", 0, 0), (1 << 64, "rows", 0, 0)),
        ((0, 'rows","0', 0, 0), (0, "rows", 0, 0)),
    ],
)
def test_inputs_with_equal_sum_or_text_give_different_keys(
    left: tuple[int, str, int, int], right: tuple[int, str, int, int]
) -> None:
    assert derive_key(*left) != derive_key(*right)


def test_seeds_of_any_size() -> None:
    # Beyond the 4,300 digits to which Python limits decimal text.
    huge = 1 << 100_000
    assert len({derive_key(seed, "rows", 0, 0) for seed in (huge, -huge, huge + 1, 0, -1)}) == 5


def test_numpy_integers_give_the_keys_of_python_integers() -> None:
    assert derive_key(np.int64(-7), "rows", np.uint8(3), np.int32(2)) == derive_key(-7, "rows", 3, 2)


def test_seed_that_is_not_an_integer_raises() -> None:
    with pytest.raises(TypeError):
        derive_key(1.0, "rows", 0, 0)  # type: ignore[arg-type]


def test_the_order_version_is_part_of_every_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = derive_key(7, "rows", 0, 0)
    monkeypatch.setattr(keys, "ORDER_VERSION", keys.ORDER_VERSION + 1)
    assert derive_key(7, "rows", 0, 0) != before
