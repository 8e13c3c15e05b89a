"""Types of every kind are pickled with the names, nullability and metadata of their fields."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import cloudpickle
import pyarrow as pa
import pytest

# what everything that is sent to other processes imports
from windrow.core import source as source

VALUE = pa.field("value", pa.int8(), nullable=False, metadata={"unit": "metre"})
KEY = pa.field("name", pa.string(), nullable=False)
PAIR = pa.list_(VALUE, 2)
KINDS = [
    pa.list_(VALUE),
    pa.large_list(VALUE),
    pa.list_view(VALUE),
    pa.large_list_view(VALUE),
    PAIR,
    pa.list_(pa.field("pair", PAIR, nullable=False), 3),
    pa.list_(pa.int8(), 2),
    pa.struct([VALUE, pa.field("pair", PAIR, nullable=False)]),
    pa.map_(KEY, VALUE),
    pa.map_(KEY, VALUE, keys_sorted=True),
    pa.map_(pa.string(), PAIR, keys_sorted=True),
    pa.dictionary(pa.int8(), PAIR, ordered=True),
    pa.run_end_encoded(pa.int16(), PAIR),
    pa.sparse_union([VALUE, pa.field("pair", PAIR)]),
    pa.dense_union([VALUE, pa.field("pair", PAIR)], [3, 7]),
    pa.fixed_shape_tensor(pa.int8(), [2, 3], dim_names=["h", "w"], permutation=[1, 0]),
    pa.opaque(PAIR, "pair", "windrow"),
]


def send(value: Any, protocol: int) -> Any:
    return pickle.loads(pickle.dumps(value, protocol))


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("protocol", [2, pickle.HIGHEST_PROTOCOL])
def test_a_schema_is_the_same_after_pickling(kind: pa.DataType, protocol: int) -> None:
    schema = pa.schema([pa.field("x", kind, nullable=False, metadata={"a": "b"})], {"c": "d"})
    copies = [
        send(schema, protocol),
        cloudpickle.loads(cloudpickle.dumps(schema)),
        copy.deepcopy(schema),
        pa.schema([schema.field(0).with_type(send(kind, protocol))], schema.metadata),
    ]
    assert all(other.equals(schema, check_metadata=True) for other in copies)
    assert all(str(other.field(0).type) == str(kind) for other in copies)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_table_without_rows_and_one_of_nulls_keep_their_types(kind: pa.DataType) -> None:
    if isinstance(kind, pa.BaseExtensionType):
        columns = [pa.ExtensionArray.from_storage(kind, pa.nulls(n, kind.storage_type)) for n in (0, 3)]
    else:
        columns = [pa.nulls(n, kind) for n in (0, 3)]
    for column in columns:
        table = pa.table([column], schema=pa.schema([pa.field("x", kind)]))
        found = send(table, 5)
        assert found.schema.equals(table.schema, check_metadata=True)
        assert str(found.column(0).type) == str(kind)
        assert found.column(0).to_pylist() == table.column(0).to_pylist()
        found.validate(full=True)
