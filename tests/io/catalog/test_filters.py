from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.io.files import open_parquet, read_all, write
from windrow.core.errors import PlanError
from windrow.io.catalog.filters import can_prune, check_filter

SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.struct([("x", pa.int8())])), ("flag", pa.bool_())])


@pytest.mark.parametrize(
    "good", [pc.field("n") > 1, pc.field("flag"), pc.field("s", "x") == 1, pc.scalar(True)]
)
def test_valid_filters_are_accepted(good: Any) -> None:
    check_filter(good, SCHEMA)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (pc.field("flog"), r"no column 'flog': did you mean 'flag'"),
        (pc.field("s", "y") == 1, r"filter="),
        (pc.field("n"), r"gives int64, not true or false"),
        (pc.field("__filename") == "x", r"no column '__filename'"),
        (True, r"is a bool: give a pyarrow expression"),
    ],
)
def test_invalid_filters_raise(bad: Any, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        check_filter(bad, SCHEMA)


@pytest.mark.parametrize(
    ("row_filter", "kept"),
    [
        (pc.field("k") == 1, [True, False, False]),
        (pc.field("k") != 1, [False, True, False]),
        (pc.field("k").is_null(), [False, False, True]),
        (pc.field("k").is_null() | (pc.field("d") == "b"), [False, True, True]),
        (pc.field("k").isin([1, 2]) & (pc.field("d") < "b"), [True, False, False]),
        (pc.field("n") == 1, None),
        ((pc.field("n") == 1) & (pc.field("k") == 1), None),
    ],
)
def test_partition_values_alone_select_fragments(
    tmp_path: Path, row_filter: Any, kept: list[bool] | None
) -> None:
    for key, letter in (("1", "a"), ("2", "b"), ("__HIVE_DEFAULT_PARTITION__", "c")):
        write(tmp_path / f"k={key}" / f"d={letter}" / "t.parquet", pa.table({"n": [1, 2]}))
    source = open_parquet(tmp_path, filter=row_filter)
    assert source.blocks.rows_known is (kept is not None)
    assert source.blocks.rows.sum() == (6 if kept is None else 2 * sum(kept))
    paths = [address.locator[0].path for address in source.addresses(range(len(source.blocks.rows)))]
    every = source.manifest.paths.to_pylist()
    assert paths == (
        every if kept is None else [path for path, keep in zip(every, kept, strict=True) if keep]
    )


F = pc.field("f")
COMPARISONS = [F == 5, F != 5, F < 5, F <= 5, F > 5, F >= 5, F.isin([5.0])]
NULLS = [F.is_null(), F.is_valid(), F.is_null(nan_is_null=True), pc.is_nan(F)]


@pytest.mark.parametrize("values", [[5.0, math.nan], [math.nan], [5.0, math.nan, None], [1.0, 5.0, math.nan]])
@pytest.mark.parametrize("narrow", [False, True])
def test_filter_decides_about_rows_of_nan(tmp_path: Path, values: list[float], narrow: bool) -> None:
    """Statistics ignore NaN, so they must not prune row groups that can contain it."""
    table = pa.table({"f": pa.array(values, pa.float64()), "i": range(len(values))})
    path = write(tmp_path / "t.parquet", table)
    every = [*COMPARISONS, *NULLS]
    both = [one & other for one in COMPARISONS for other in NULLS]
    either = [one | other for one in COMPARISONS for other in NULLS]
    columns = ["i"] if narrow else None
    for row_filter in [*every, *(~one for one in every), *both, *either]:
        found = read_all(open_parquet(path, columns=columns, filter=row_filter))
        expected = table.filter(row_filter)
        assert found.column("i").to_pylist() == expected.column("i").to_pylist(), row_filter


def test_statistics_prune_only_filters_that_nan_cannot_affect() -> None:
    schema = pa.schema([("f", pa.float64()), ("i", pa.int64())])
    assert can_prune(F > 5, schema)
    assert can_prune((F > 5) | (F == 2), schema)
    assert can_prune(~(pc.field("i") <= 5), schema)
    assert not can_prune(~(F <= 5), schema)
    assert not can_prune((pc.field("i") > 1) & (F != 5), schema)


@pytest.mark.parametrize("target", [1, 200, 2**20])
def test_filtered_rows_stay_in_stored_order(tmp_path: Path, target: int) -> None:
    """Row groups stay in order whichever comes first: Arrow once read them in the order of a set."""
    path = write(tmp_path / "t.parquet", pa.table({"n": range(100)}), row_group_size=1)
    source = open_parquet(path, filter=pc.field("n") != 50, target_block_bytes=target)
    found = pa.concat_tables(map(source.reader.read, source.addresses(range(len(source.blocks.rows)))))
    assert found.column("n").to_pylist() == [n for n in range(100) if n != 50]


def test_filter_applies_beside_a_tensor_column(tmp_path: Path) -> None:
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(24.0).reshape(4, 2, 3))
    table = pa.table({"i": range(4), "t": tensors})
    path = write(tmp_path / "t.parquet", table)
    found = read_all(open_parquet(path, filter=pc.field("i") > 2))
    assert found.column("t").combine_chunks().to_numpy_ndarray().tolist() == [
        [[18.0, 19.0, 20.0], [21.0, 22.0, 23.0]]
    ]
