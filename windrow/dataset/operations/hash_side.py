"""`HashSide`: keeps the rows on one side of ``train_test_split(by=)``; pickles of datasets name it by this module."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pyarrow as pa

from windrow.core.errors import PlanError
from windrow.shuffle.order.keys import derive_key
from windrow.shuffle.order.value_hash import hash_values, mix_key

__all__ = ["HashSide"]


@dataclass(frozen=True)
class HashSide:
    """A row is on the test side if its value's hash is in the first part of all hashes."""

    column: str
    share: Fraction
    seed: int
    is_test: bool

    def __call__(self, table: pa.Table) -> pa.Table:
        """Return the rows of this side."""
        if self.column not in table.column_names:
            raise PlanError(f"train_test_split(by={self.column!r}): the columns are {table.column_names}")
        key = int.from_bytes(derive_key(self.seed, "train_test_split", 0, 0)[:8], "little")
        hashes = mix_key(hash_values(table.column(self.column)), key)
        kept = (hashes < np.uint64(int(2**64 * self.share))) == self.is_test
        return table.filter(pa.array(kept))
