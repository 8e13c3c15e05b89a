"""A map-style dataset (``__len__`` and ``__getitem__``) as a source; items are fetched when read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.core.errors import SourceError
from windrow.core.source import BlockAddress
from windrow.core.tracebacks import trims_traceback
from windrow.io.catalog.listed_source import ListedSource, WholeBlockReader
from windrow.io.catalog.safe_casts import conform_table
from windrow.io.catalog.value_sizes import cut_rows, make_block_table, weigh_table

_SAMPLED_ITEMS = 8

Convert = Callable[[Sequence[Any], str], pa.Table]


@dataclass(frozen=True, eq=False)
class ItemsReader(WholeBlockReader):
    """Fetches the items of a block; its locator is the range of their indices.

    ``convert`` makes a table of items; its second argument is the block's origin, for errors. ``schema`` is
    None for sampling, before it is known.
    """

    items: Any
    convert: Convert
    schema: pa.Schema | None = None

    def read(self, address: BlockAddress) -> pa.Table:
        """Fetch the items of a block; a SourceError names one that fails or does not fit the schema."""
        found = []
        for number in address.locator:
            try:
                found.append(self.items[number])
            except Exception as error:
                raise SourceError(
                    f"{address.origin}: item {number}: {type(error).__name__}: {error}"
                ) from error
        table = self.convert(found, address.origin)
        fix = "give all items the same names, types and shapes"
        return conform_table(table, self.schema, address.origin, fix)


@trims_traceback
def index_items(items: Any, convert: Convert, name: str, target_block_bytes: int) -> ListedSource:
    """Return a source of items; a few are sampled now to find columns, types and row size."""
    rows = len(items)
    if not rows:
        raise SourceError(f"{name}: {type(items).__qualname__} has no items, so its columns are unknown")
    # evenly spaced, so that vectors of different lengths are found
    numbers = sorted({rows * place // _SAMPLED_ITEMS for place in range(_SAMPLED_ITEMS)})
    sample = ItemsReader(items, convert).read(BlockAddress(name, numbers))
    row_bytes = max(1, weigh_table(sample) // len(numbers))
    borders = cut_rows(rows, rows * row_bytes, target_block_bytes)
    counts = np.diff(borders)
    kind = type(items)
    text = f"{kind.__module__}.{kind.__qualname__} {rows}\n{sample.schema.to_string()}"
    return ListedSource(
        name=f"{name}({kind.__qualname__})",
        schema=sample.schema,
        blocks=make_block_table(counts, counts * row_bytes, sample.schema),
        block_addresses=tuple(
            BlockAddress(f"{name}, items {start}-{stop - 1}", range(start, stop))
            for start, stop in pairwise(borders.tolist())
        ),
        reader=ItemsReader(items, convert, sample.schema),
        fingerprint=hashlib.sha256(text.encode()).hexdigest(),
        null_counts=dict.fromkeys(sample.schema.names),
        block_bytes=target_block_bytes,
        fragments=1,
    )
