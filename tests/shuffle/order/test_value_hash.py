"""The hash of values: golden, independent of layout, and evenly spread."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.shuffle.examples import by_day
from windrow.core.errors import PlanError
from windrow.shuffle.order.value_hash import check_hashable, hash_rows, hash_values


def _hash(values: list[Any], kind: pa.DataType) -> list[int]:
    return hash_values(pa.chunked_array([pa.array(values, kind)])).tolist()


def test_golden() -> None:
    """Data that was split by these hashes must stay where it is."""
    assert f"{_hash(['windrow'], pa.string())[0]:016x}" == "1ffc25a1a07790b0"
    assert f"{_hash([1.5], pa.float32())[0]:016x}" == "d334e79f512f20b5"
    assert f"{_hash(['x' * 2000], pa.string())[0]:016x}" == "0c34b07efecc7c76"


def test_types_of_one_value_agree() -> None:
    assert _hash([5, None], pa.int8()) == _hash([5, None], pa.int64()) == _hash([5, None], pa.uint32())
    assert _hash([0.5], pa.float32()) == _hash([0.5], pa.float64())
    assert _hash([0.0], pa.float64()) == _hash([-0.0], pa.float64())
    assert _hash(["ab"], pa.string()) == _hash([b"ab"], pa.large_binary()) == _hash([b"ab"], pa.binary(2))
    assert _hash(["ab", None], pa.dictionary(pa.int8(), pa.string())) == _hash(["ab", None], pa.string())
    moment = datetime.datetime(2021, 5, 6, 7, 8, 9)
    assert len({_hash([moment], pa.timestamp(unit))[0] for unit in ("s", "ms", "us", "ns")}) == 1
    assert _hash([moment.date()], pa.date32()) == _hash([moment.date()], pa.date64())
    assert _hash([None], pa.null()) == _hash([None], pa.string()) == _hash([None], pa.bool_())


@by_day(30)
@given(
    values=st.lists(st.none() | st.binary(max_size=30) | st.just(b"y" * 1_500), max_size=40),
    start=st.integers(0, 40),
)
def test_slices_and_chunks_do_not_matter(values: list[bytes | None], start: int) -> None:
    array = pa.array(values, pa.binary())
    whole = hash_values(pa.chunked_array([array], pa.binary()))
    assert hash_values(pa.chunked_array([array[:start], array[start:]])).tolist() == whole.tolist()
    alone = [hash_values(pa.chunked_array([pa.array([value], pa.binary())]))[0] for value in values]
    assert whole.tolist() == [int(each) for each in alone]
    assert len(set(whole.tolist())) == len(set(values))


def test_values_spread_evenly() -> None:
    for column in (pa.array(np.arange(64_000)), pa.array([f"user-{i}" for i in range(64_000)])):
        counts = np.bincount((hash_values(pa.chunked_array([column])) >> np.uint64(58)).astype(np.int64))
        # 64 cells of 1,000 expected each: a standard deviation is 31
        assert len(counts) == 64
        assert np.abs(counts - 1_000).max() < 160


def test_hashes_of_rows_depend_on_every_column_and_its_place() -> None:
    left, right = (pa.chunked_array([np.arange(64_000) // share]) for share in (250, 1))
    for columns in ([left, left], [left, right], [right, left], [left, left, left]):
        distinct = {column.to_pylist()[-1] + 1 for column in columns}
        hashes = hash_rows(columns)
        assert len(set(hashes.tolist())) == max(distinct)
    assert np.count_nonzero(hash_rows([left, right]) == hash_rows([right, left])) == 1, "of zeros"
    assert hash_rows([left]).tolist() == hash_values(left).tolist()


def test_what_has_no_hash_is_refused() -> None:
    with pytest.raises(PlanError, match="'x' is list"):
        check_hashable(pa.list_(pa.int8()), "x", "repartition(by=)")
