"""Checks of arguments that several public calls share: counts, seeds, locality hints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from windrow.core.errors import PlanError
from windrow.core.integers import as_integer

__all__ = ["check_blocks", "check_count", "check_hints", "check_names", "check_places", "check_seed"]

# far more than useful; each takes some microseconds to plan
MAX_BLOCKS = 2**17


def check_count(value: object, name: str, more: str = "") -> int:
    """Return ``value`` as an integer of 1 or more, or raise a PlanError; ``more`` names other valid values."""
    number = as_integer(value)
    if number is None or number < 1:
        raise PlanError(f"{name}={value!r} must be an integer of 1 or more{more and ', ' + more}")
    return number


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


def check_places(places: Sequence[int], caller: str) -> list[int]:
    """Return row numbers of 0 or more, in ascending order and at least one, or raise a PlanError."""
    numbers = [as_integer(place) for place in places] if isinstance(places, Iterable) else []
    found = [number for number in numbers if number is not None]
    if not found or len(found) < len(numbers) or found != sorted(found) or found[0] < 0:
        raise PlanError(f"{caller}({places!r}) needs row numbers of 0 or more, in ascending order")
    return found


def check_hints(hints: Sequence[Any] | None, shards: int) -> list[Any] | None:
    """Return a list with one hint per shard, or raise a PlanError."""
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
    return list(hints)
