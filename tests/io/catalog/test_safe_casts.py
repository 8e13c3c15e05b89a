"""Casts of nested columns look at the values of their own rows alone."""

from __future__ import annotations

import pyarrow as pa
import pytest

from windrow.io.catalog.safe_casts import cast_array


@pytest.mark.parametrize("make", [pa.list_, pa.large_list])
def test_values_beside_a_slice_of_lists_are_not_cast(make: type) -> None:
    array = pa.array([[300], [1, 2], [3], [400]], make(pa.int16()))
    assert cast_array(array[1:3], make(pa.int8())).to_pylist() == [[1, 2], [3]]
    with pytest.raises(pa.ArrowInvalid):
        cast_array(array[1:], make(pa.int8()))
