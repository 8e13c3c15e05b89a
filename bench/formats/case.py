"""What is measured of one format."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from bench.machine import count_cores

__all__ = ["BATCH_ROWS", "Case", "on_all_cores"]

# of the batches that the library alone makes too, each in memory of its own
BATCH_ROWS = 1024

T = TypeVar("T")


@dataclass(frozen=True)
class Case:
    """A format.

    Attributes
    ----------
    name
        What it is called on the command line.
    make
        Writes about so many bytes of data into a folder.
    alone
        Reads that folder once with the library alone, on all cores, into memory, as the library
        does where nothing else is asked for; returns rows.
    read
        The same as a Dataset.
    mapped
        The same as ``alone`` by mapping files and copying batch by batch, for libraries that do
        so where they are asked.
    """

    name: str
    make: Callable[[Path, int], None]
    alone: Callable[[Path], int]
    read: Callable[[Path], Any]
    mapped: Callable[[Path], int] | None = None


def on_all_cores(work: Callable[[T], int], items: Sequence[T]) -> int:
    """Do something for each item on as many threads as there are cores, and add up."""
    with ThreadPoolExecutor(count_cores()) as threads:
        return sum(threads.map(work, items))
