"""Estimate rows and bytes of a file's row groups from a sample at its beginning."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from windrow.io.catalog.fragments import FragmentFacts
from windrow.io.catalog.value_widths import fixed_bits

__all__ = ["estimate_facts"]


def estimate_facts(sample: pa.Table, sample_bytes: int, group_bytes: Sequence[int]) -> FragmentFacts:
    """Extrapolate rows and bytes of row groups from a sample.

    Parameters
    ----------
    sample
        The first rows of the file; empty if the file has no rows.
    sample_bytes
        The bytes that these rows occupy in the file.
    group_bytes
        (row groups,) the uncompressed bytes of each.
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
