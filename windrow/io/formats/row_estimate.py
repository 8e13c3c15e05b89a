"""What a file's row groups hold, as far as rows from its beginning tell."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from windrow.io.catalog.fragments import FragmentFacts
from windrow.io.catalog.value_widths import fixed_bits

__all__ = ["estimate_facts"]


def estimate_facts(sample: pa.Table, sample_bytes: int, group_bytes: Sequence[int]) -> FragmentFacts:
    """Estimate rows and bytes of row groups from a sample.

    Parameters
    ----------
    sample
        Rows from the beginning of the file; none where it has none at all.
    sample_bytes
        What they take in the file.
    group_bytes
        (row groups,) the bytes of each, not compressed.
    """
    groups = group_bytes if sample.num_rows else []
    shares = [size / max(sample_bytes, 1) for size in groups]
    variable = {
        field.name: [max(round(column.nbytes * share), 1) for share in shares]
        for field, column in zip(sample.schema, sample.columns, strict=True)
        if fixed_bits(field.type) is None
    }
    return FragmentFacts(
        schema=sample.schema,
        rows=[max(round(sample.num_rows * share), 1) for share in shares],
        encoded_bytes=list(groups),
        variable={name: (sizes, sizes) for name, sizes in variable.items()},
        nulls=dict.fromkeys(sample.schema.names),
    )
