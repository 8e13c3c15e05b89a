"""Cuts tables of tensors of any length into batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

__all__ = ["Tensors", "cut_batches"]

Tensors = dict[str, Any]


def cut_batches(tables: Iterable[Tensors], size: int) -> Iterator[Tensors]:
    """Batches of ``size`` rows, the last one shorter; views if a batch lies within one table."""
    rest: Tensors | None = None
    for tensors in tables:
        rows = _count(tensors)
        start = 0
        if rest is not None:
            start = min(rows, size - _count(rest))
            rest = _join(rest, _cut(tensors, 0, start))
            if _count(rest) < size:
                continue
            yield rest
            rest = None
        whole = start + (rows - start) // size * size
        for first in range(start, whole, size):
            yield _cut(tensors, first, first + size)
        rest = _cut(tensors, whole, rows) if whole < rows else None
    if rest is not None:
        yield rest


def _count(tensors: Tensors) -> int:
    return len(next(iter(tensors.values())))


def _cut(tensors: Tensors, start: int, stop: int) -> Tensors:
    return {name: values[start:stop] for name, values in tensors.items()}


def _join(one: Tensors, other: Tensors) -> Tensors:
    import torch

    return {name: torch.cat([values, other[name]]) for name, values in one.items()}
