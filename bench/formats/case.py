"""The measurement of one format."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from bench.system.machine import count_cores

# the library alone produces batches of this size too, each in newly allocated memory
BATCH_ROWS = 1024

T = TypeVar("T")


@dataclass(frozen=True)
class Case:
    """A format.

    Attributes
    ----------
    name
        Name on the command line.
    make
        Writes about this many bytes of data into a folder.
    alone
        Reads the folder once into memory with the library alone and its defaults, on all cores;
        returns the number of rows.
    read
        Opens the folder as a windrow Dataset.
    mapped
        Like ``alone``, but by memory-mapping files and copying batch by batch, for libraries that
        support it.
    """

    name: str
    make: Callable[[Path, int], None]
    alone: Callable[[Path], int]
    read: Callable[[Path], Any]
    mapped: Callable[[Path], int] | None = None


def on_all_cores(work: Callable[[T], int], items: Sequence[T]) -> int:
    """Process the items on one thread per core, and sum the results."""
    with ThreadPoolExecutor(count_cores()) as threads:
        return sum(threads.map(work, items))
