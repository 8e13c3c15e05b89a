"""DataFrames of Spark on Ray (RayDP) as a source: rows move to Ray's object store without staging files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import ray

from windrow.core.errors import SourceError
from windrow.io.catalog.listed_source import ListedSource
from windrow.pipeline.executors.ray.coordinator_calls import get_all
from windrow.pipeline.executors.ray.data.ray_data_source import RefsReader, list_blocks

__all__ = ["list_frame"]


def list_frame(df: Any, vectors: Sequence[str], target_block_bytes: int) -> ListedSource:
    """Make a source from a DataFrame; Spark computes it now, one object per partition.

    Parameters
    ----------
    vectors
        List columns that become fixed-size lists if all their lists have one length.

    Raises
    ------
    SourceError
        If Spark fails, or there are no rows.
    """
    from raydp.spark.dataset import from_spark_recoverable

    try:
        dataset = from_spark_recoverable(df).materialize()
        refs = dataset.to_arrow_refs()
        found = get_all([_lengths_remote.remote(ref, list(vectors)) for ref in refs], "from_spark")
    except ray.exceptions.RayError as error:
        raise SourceError(
            f"from_spark: RayDP could not move the rows ({error}): check that RayDP's executors are running, "
            "or pass use='parquet'"
        ) from error
    source = list_blocks(dataset, "from_spark", target_block_bytes)
    widths = {name: set().union(*(lengths[name] for lengths in found)) for name in vectors}
    fields = [_fixed(field, widths.get(field.name, set())) for field in source.schema]
    schema = pa.schema(fields)
    return replace(source, schema=schema, reader=RefsReader(schema))


def _lengths(table: pa.Table, names: list[str]) -> dict[str, set[int]]:
    """The distinct list lengths of each column."""
    import pyarrow.compute as pc

    counted = {name: pc.unique(pc.list_value_length(table.column(name))) for name in names}
    return {name: set(lengths.drop_null().to_pylist()) for name, lengths in counted.items()}


# num_cpus=0, since consumers may hold all CPUs; an explicit strategy escapes the caller's placement group
_lengths_remote: Any = ray.remote(num_cpus=0, scheduling_strategy="SPREAD")(_lengths)


def _fixed(field: Any, lengths: set[int]) -> Any:
    if len(lengths) != 1:
        return field
    return field.with_type(pa.list_(field.type.value_field, lengths.pop()))
