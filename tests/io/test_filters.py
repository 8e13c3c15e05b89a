from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.io.files import write
from windrow.core.errors import PlanError
from windrow.io.filters import check_filter
from windrow.io.source import open_parquet

SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.struct([("x", pa.int8())])), ("flag", pa.bool_())])


@pytest.mark.parametrize(
    "good", [pc.field("n") > 1, pc.field("flag"), pc.field("s", "x") == 1, pc.scalar(True)]
)
def test_filters_that_fit(good: Any) -> None:
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
def test_filters_that_do_not(bad: Any, message: str) -> None:
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
def test_fragments_are_kept_by_partitions_alone(
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
