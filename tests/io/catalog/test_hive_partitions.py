from __future__ import annotations

import pyarrow as pa
import pytest

from windrow.core.errors import SourceError
from windrow.io.catalog.hive_partitions import find_partitions

NULL = "__HIVE_DEFAULT_PARTITION__"


@pytest.mark.parametrize(
    ("values", "kind", "parsed"),
    [
        (["1", "-2", "007"], pa.int32(), [1, -2, 7]),
        (["1", NULL], pa.int32(), [1, None]),
        ([str(2**31 - 1), str(-(2**31))], pa.int32(), [2**31 - 1, -(2**31)]),
        ([str(2**31)], pa.int64(), [2**31]),
        ([str(-(2**63)), str(2**63 - 1)], pa.int64(), [-(2**63), 2**63 - 1]),
        ([str(2**63)], pa.string(), [str(2**63)]),
        (["1", "a"], pa.string(), ["1", "a"]),
        (["1.5"], pa.string(), ["1.5"]),
        (["a%20b%2Fc", "x=y", ""], pa.string(), ["a b/c", "x=y", ""]),
        ([NULL], pa.string(), [None]),
    ],
)
def test_values_are_parsed_to_int32_int64_or_string(
    values: list[str], kind: pa.DataType, parsed: list[object]
) -> None:
    paths = [f"k={value}/a.parquet" for value in values]
    partitions = find_partitions(paths, ())
    assert partitions.schema == pa.schema([("k", kind)])
    assert [partitions.values(path) for path in paths] == [(value,) for value in parsed]
    assert partitions.table(paths).column("k").to_pylist() == parsed


def test_keys_keep_their_order_and_missing_keys_are_null() -> None:
    partitions = find_partitions(["y=1/m%20n=2/a", "b", "x/y=3/c", "y=1/=2/k=v"], ())
    assert partitions.schema.names == ["y", "m n"]
    assert partitions.values("b") == (None, None)
    assert partitions.values("x/y=3/c") == (3, None)


def test_stored_columns_override_partitions() -> None:
    assert find_partitions(["y=1/m=2/a"], ["y"]).schema.names == ["m"]


def test_repeated_key_raises() -> None:
    with pytest.raises(SourceError, match=r"y=1/y=2/a names the partition 'y' twice"):
        find_partitions(["y=1/y=2/a"], ())
