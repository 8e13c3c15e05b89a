"""`GroupCalls`: calls a user's function for each group of a block that is sorted by the keys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa

from windrow.core.arrow_support import empty_table
from windrow.core.user_functions import function_name
from windrow.pipeline.delivery.batch_formats import BatchFormat, convert
from windrow.pipeline.tasks.key_columns import find_group_starts, plain_columns
from windrow.pipeline.tasks.transform_results import result_to_table
from windrow.pipeline.tasks.transforms import as_one_batch, check_schema

__all__ = ["GroupCalls"]


@dataclass(frozen=True)
class GroupCalls:
    """The function that `map_batches` gets for ``map_groups``."""

    fn: Callable[[Any], Any]
    keys: tuple[str, ...]
    batch_format: BatchFormat

    def __post_init__(self) -> None:
        # what errors call it
        object.__setattr__(self, "__qualname__", f"map_groups({function_name(self.fn)})")

    def __call__(self, table: pa.Table) -> pa.Table:
        """Return the results of all groups."""
        batch = as_one_batch(table, "map_groups")
        starts = find_group_starts(plain_columns(table, self.keys)).tolist()
        results: list[pa.Table] = []
        for start, stop in pairwise([*starts, table.num_rows]):
            group = batch.slice(start, stop - start)
            # a copy, since the function can put other arrays into its dict
            given = convert(group, self.batch_format, writable=False)
            arrays = dict(given) if self.batch_format == "numpy" else None
            result = result_to_table(self.fn(given), group, arrays)
            if not result.num_rows:
                continue
            if results:
                check_schema(results[0].schema, result.schema, f"group {self._name(group)}")
            results.append(result)
        return pa.concat_tables(results) if results else empty_table(result.schema)

    def _name(self, group: pa.RecordBatch) -> str:
        row = group.select(list(self.keys)).slice(0, 1).to_pylist()[0]
        return ", ".join(f"{name}={value!r}" for name, value in row.items())
