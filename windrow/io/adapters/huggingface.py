"""A Hugging Face dataset on disk as a source; every reading process maps its files itself."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.core.arrow_bytes import arrow_bytes
from windrow.core.errors import SourceError
from windrow.core.source import BlockAddress
from windrow.io.catalog.listed_source import ListedSource, WholeBlockReader
from windrow.io.catalog.safe_casts import plain_schema, plain_table
from windrow.io.catalog.value_sizes import cut_rows, fixed_bits, make_block_table
from windrow.io.storage.error_causes import find_cause

# The digest covers this many evenly spaced pages of each file, and all of a small file.
_PAGES = 64
_PAGE_BYTES = 2**16


@dataclass(frozen=True, eq=False)
class HuggingFaceReader(WholeBlockReader):
    """Reads rows of a dataset; a block's locator is (start, stop)."""

    # a ``datasets.Dataset`` in Arrow format, whose pickle refers to its files by path
    dataset: Any

    def read(self, address: BlockAddress) -> pa.Table:
        """Read one block; zero-copy unless the dataset has indices."""
        start, stop = address.locator
        try:
            return plain_table(self.dataset[start:stop])
        except Exception as error:
            cause = find_cause(error, local=True, filters=False)
            raise SourceError(
                f"{address.origin}: {cause.what}: {type(error).__name__}: {error}; {cause.fix}"
            ) from error


def list_rows(dataset: Any, name: str, target_block_bytes: int) -> ListedSource:
    """Return a source of the rows of a dataset on disk, through its indices if it has any."""
    dataset = dataset.with_format("arrow")
    stored = dataset.data
    schema = plain_schema(stored.schema.remove_metadata())
    schema = pa.schema([schema.field(column) for column in dataset.column_names])
    widths = [fixed_bits(field.type) for field in schema]
    exact = None not in widths
    bits = sum(width or 0 for width in widths)
    row_bytes = bits / 8 if exact else arrow_bytes(stored.table) / max(1, stored.num_rows)
    borders = cut_rows(len(dataset), math.ceil(len(dataset) * row_bytes), target_block_bytes)
    rows = np.diff(borders)
    sizes = (rows * bits + 7) // 8 if exact else np.ceil(rows * row_bytes).astype(np.int64)
    return ListedSource(
        name=name,
        schema=schema,
        blocks=make_block_table(rows, sizes, schema),
        block_addresses=tuple(
            BlockAddress(f"{name}, rows {start}-{stop - 1}", (start, stop))
            for start, stop in pairwise(borders.tolist())
        ),
        reader=HuggingFaceReader(dataset),
        fingerprint=_digest(dataset),
        null_counts=dict.fromkeys(schema.names),
        block_bytes=target_block_bytes,
        fragments=max(1, len(dataset.cache_files)),
        reads=tuple(file["filename"] for file in dataset.cache_files),
    )


def _digest(dataset: Any) -> str:
    """Digest the sizes and sampled pages of the files, and all indices."""
    digest = hashlib.sha256(f"{len(dataset)} {dataset.column_names}".encode())
    for file in dataset.cache_files:
        digest.update(_digest_pages(Path(file["filename"])))
    if dataset._indices is not None:
        for chunk in dataset._indices.column(0).chunks:
            digest.update(np.ascontiguousarray(chunk.to_numpy()).tobytes())
    return digest.hexdigest()


def _digest_pages(path: Path) -> bytes:
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    last = max(0, size - _PAGE_BYTES)
    with path.open("rb") as file:
        for place in sorted({last * page // (_PAGES - 1) for page in range(_PAGES)}):
            file.seek(place)
            digest.update(file.read(_PAGE_BYTES))
    return digest.digest()
