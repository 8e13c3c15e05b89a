from __future__ import annotations

import pyarrow as pa
import pytest

from windrow.core.errors import SourceError
from windrow.io.catalog.schemas import unify_schemas


def test_first_schema_sets_the_order_and_any_nullable_field_wins() -> None:
    one = pa.schema([pa.field("a", pa.int8(), nullable=False), ("b", pa.null())], metadata={"k": "v"})
    two = pa.schema([("b", pa.string()), ("a", pa.int8())])
    assert unify_schemas([("1", one), ("2", two)]) == pa.schema([("a", pa.int8()), ("b", pa.string())])


def test_error_names_column_files_and_both_types() -> None:
    files = [("1.pq", pa.schema([("a", pa.int8())])), ("2.pq", pa.schema([("a", pa.int32())]))]
    files.append(("3.pq", pa.schema([("a", pa.string())])))
    with pytest.raises(SourceError, match=r"column 'a' is string in 3\.pq but int32 in 2\.pq"):
        unify_schemas(files)


@pytest.mark.parametrize("swapped", [False, True])
def test_missing_column_raises(swapped: bool) -> None:
    files = [
        ("1.pq", pa.schema([("a", pa.int8()), ("b", pa.int8())])),
        ("2.pq", pa.schema([("a", pa.int8())])),
    ]
    with pytest.raises(SourceError, match=r"column 'b' is missing in 2\.pq but int8 in 1\.pq"):
        unify_schemas(files[::-1] if swapped else files)


def test_duplicate_column_raises() -> None:
    with pytest.raises(SourceError, match=r"1\.pq has more than one column 'a'"):
        unify_schemas([("1.pq", pa.schema([("a", pa.int8()), ("a", pa.int8())]))])
