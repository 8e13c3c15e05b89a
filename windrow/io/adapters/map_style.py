"""Objects that give an item for each number, as a source: asked when they are read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.core.errors import SourceError
from windrow.core.source import BlockAddress, BlockPart, BlockTable
from windrow.core.tracebacks import ends_traceback
from windrow.io.catalog.listed_source import ListedSource
from windrow.io.catalog.value_widths import fixed_bits
from windrow.io.in_memory.schema_conversion import conform_table
from windrow.io.in_memory.value_sizes import cut_rows, weigh_table

__all__ = ["ItemsReader", "index_items"]

_LOOKS = 8

Convert = Callable[[Sequence[Any], str], pa.Table]


@dataclass(frozen=True, eq=False)
class ItemsReader:
    """Asks for the items of a block; its locator is the range of their numbers.

    Attributes
    ----------
    items
        Has ``__getitem__``.
    convert
        Makes a table of items; gets the block in words too.
    schema
        What every block has; None before anything was read.
    """

    items: Any
    convert: Convert
    schema: pa.Schema | None = None

    def read(self, address: BlockAddress) -> pa.Table:
        """The items of a block.

        Raises
        ------
        SourceError
            If an item cannot be had, or does not fit the first item's columns.
        """
        found = []
        for number in address.locator:
            try:
                found.append(self.items[number])
            except Exception as error:
                raise SourceError(
                    f"{address.origin}: item {number}: {type(error).__name__}: {error}"
                ) from error
        table = self.convert(found, address.origin)
        if self.schema is None:
            return table
        return conform_table(
            table, self.schema, address.origin, "give all items the same names, types and shapes"
        )

    def parts(self, address: BlockAddress) -> Iterator[BlockPart]:
        """The block as one part."""
        yield self.read(address)


@ends_traceback
def index_items(items: Any, convert: Convert, name: str, target_block_bytes: int) -> ListedSource:
    """A source of items by number; a few are looked at for columns, types and size.

    Raises
    ------
    SourceError
        If there are none, or one of those cannot be had.
    """
    rows = len(items)
    if not rows:
        raise SourceError(f"{name}: {type(items).__qualname__} has no items, so nothing tells the columns")
    # evenly spread, so that vectors of several lengths show
    numbers = sorted({rows * place // _LOOKS for place in range(_LOOKS)})
    look = ItemsReader(items, convert).read(BlockAddress(name, numbers))
    row_bytes = max(1, weigh_table(look) // len(numbers))
    borders = cut_rows(rows, rows * row_bytes, target_block_bytes)
    counts = np.diff(borders)
    kind = type(items)
    text = f"{kind.__module__}.{kind.__qualname__} {rows}\n{look.schema.to_string()}"
    exact = all(fixed_bits(field.type) is not None for field in look.schema)
    return ListedSource(
        name=f"{name}({kind.__qualname__})",
        schema=look.schema,
        blocks=BlockTable(counts, counts * row_bytes, counts * row_bytes, rows_known=True, bytes_exact=exact),
        block_addresses=tuple(
            BlockAddress(f"{name}, items {start}-{stop - 1}", range(start, stop))
            for start, stop in pairwise(borders.tolist())
        ),
        reader=ItemsReader(items, convert, look.schema),
        fingerprint=hashlib.sha256(text.encode()).hexdigest(),
        null_counts=dict.fromkeys(look.schema.names),
        block_bytes=target_block_bytes,
        fragments=1,
    )
