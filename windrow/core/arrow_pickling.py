"""Pickles Arrow's nested types as they are: pyarrow 26 pickles some of them without all their parameters.

Rows cross between processes as pickles, with their schemas. pyarrow gives a fixed-size list back with a nullable field
named "item", without its metadata, and a map of sorted keys as one of unsorted keys. This holds for types anywhere in a
schema, a table or an array, so the pickling of the types themselves is corrected, for the whole process. To unpickle
them takes pyarrow alone.
"""

from __future__ import annotations

import copyreg
from typing import Any

import pyarrow as pa


def _reduce_fixed_size_list(kind: Any) -> tuple[Any, ...]:
    return pa.list_, (kind.value_field, kind.list_size)


def _reduce_map(kind: Any) -> tuple[Any, ...]:
    return pa.map_, (kind.key_field, kind.item_field, kind.keys_sorted)


copyreg.pickle(pa.FixedSizeListType, _reduce_fixed_size_list)
copyreg.pickle(pa.MapType, _reduce_map)
