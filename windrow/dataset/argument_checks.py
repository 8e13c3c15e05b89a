"""Checks of arguments that several public calls share: seeds, names, sort keys, tables, locality hints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.core.arrow_support import check_supported, decode_runs
from windrow.core.errors import PlanError, SourceError
from windrow.core.integers import as_integer, check_count
from windrow.core.offsets import check_layout
from windrow.pipeline.tasks.key_columns import check_key

# far more than useful; each takes some microseconds to plan
MAX_BLOCKS = 2**17


def check_blocks(n: object) -> int:
    """Return a number of blocks, from 1 to `MAX_BLOCKS`, or raise a PlanError."""
    number = check_count(n, "n")
    if number > MAX_BLOCKS:
        raise PlanError(f"n={number:,} blocks are too many: give at most {MAX_BLOCKS:,}")
    return number


def check_seed(seed: object) -> int:
    """Return ``seed`` as an integer, or raise a PlanError."""
    number = as_integer(seed)
    if number is None:
        raise PlanError(f"seed={seed!r} must be an integer, or None to draw one")
    return number


def check_names(names: object, caller: str) -> tuple[str, ...]:
    """Return column names, at least one and no name twice, as a tuple, or raise a PlanError."""
    found = [*names] if isinstance(names, Sequence) and not isinstance(names, (str, bytes)) else []
    if not found or not all(isinstance(name, str) for name in found):
        raise PlanError(f"{caller}: {names!r} must be a list of column names")
    if len(set(found)) < len(found):
        twice = next(name for name in found if found.count(name) > 1)
        raise PlanError(f"{caller}: {twice!r} is given twice")
    return tuple(found)


def list_keys(key: Any, call: str) -> tuple[str, ...]:
    """Return a column or a list of columns as a tuple, or raise a PlanError."""
    keys = (key,) if isinstance(key, str) else tuple(key) if isinstance(key, Sequence) else ()
    if not keys or not all(isinstance(name, str) for name in keys):
        raise PlanError(f"{call}: {key!r} must be the name of a column, or a list of names")
    if len(set(keys)) < len(keys):
        raise PlanError(f"{call}: {key!r} names a column twice")
    return keys


def check_sort(key: Any, descending: Any, call: str) -> tuple[tuple[str, ...], tuple[bool, ...]]:
    """Return the columns to sort by, and whether each descends, or raise a PlanError."""
    keys = list_keys(key, call)
    is_one = isinstance(descending, (bool, np.bool_)) or not isinstance(descending, Iterable)
    down = [descending] * len(keys) if is_one else list(descending)
    down = [bool(each) if isinstance(each, np.bool_) else each for each in down]
    if len(down) != len(keys) or not all(isinstance(each, bool) for each in down):
        raise PlanError(
            f"{call}: descending={descending!r} must be True or False, or a list with one for each key"
        )
    return keys, tuple(down)


def check_keys(schema: pa.Schema | None, keys: Sequence[str], call: str) -> None:
    """Raise a PlanError unless rows can be sorted by all columns; a schema of None is not known yet."""
    for name in keys if schema is not None else ():
        check_key(schema, name, call)


def check_places(places: Sequence[int], caller: str) -> list[int]:
    """Return row numbers of 0 or more, in ascending order and at least one, or raise a PlanError."""
    numbers = [as_integer(place) for place in places] if isinstance(places, Iterable) else []
    found = [number for number in numbers if number is not None]
    if not found or len(found) < len(numbers) or found != sorted(found) or found[0] < 0:
        raise PlanError(f"{caller}({places!r}) needs row numbers of 0 or more, in ascending order")
    return found


def check_table(table: pa.Table, caller: str) -> pa.Table:
    """Return a table, run-end encoded columns decoded; a PlanError or SourceError if windrow cannot read it."""
    if not table.num_columns:
        raise PlanError(f"{caller}: a table has no columns; give at least one")
    check_supported(table.schema, caller)
    try:
        # the table can be mapped from an untrusted file
        check_layout(table)
    except pa.ArrowInvalid as error:
        raise SourceError(
            f"{caller}: {error}. If the table was read or mapped from a file, write the file again"
        ) from error
    return decode_runs(table)


def check_hints(hints: Sequence[Any] | None, shards: int, replicas: int | None = None) -> list[Any] | None:
    """Return a list with one hint per shard, or with one list of hints per shard, or raise a PlanError."""
    if hints is None:
        return None
    if isinstance(hints, str) or not isinstance(hints, Sequence):
        raise PlanError(
            f"locality_hints={hints!r} must be a list: one actor handle, node id or None per shard"
        )
    if len(hints) != shards:
        raise PlanError(
            f"locality_hints has {len(hints)} entries for {shards} shards: give one per shard, or None"
        )
    if replicas is None:
        return list(hints)
    found = []
    for shard, of_shard in enumerate(hints):
        if of_shard is None:
            found.append([None] * replicas)
            continue
        if isinstance(of_shard, str) or not isinstance(of_shard, Sequence) or len(of_shard) != replicas:
            raise PlanError(
                f"locality_hints[{shard}]={of_shard!r} must be a list of {replicas} hints, one per replica of shard "
                f"{shard}, or None"
            )
        found.append(list(of_shard))
    return found
