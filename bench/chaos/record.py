"""The log of a trainer's steps, in a file that survives its death, and the progress that trainers share."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Incarnation", "SharedProgress", "Step", "read_incarnation", "write_step"]


@dataclass(frozen=True)
class Step:
    """One batch that a trainer received.

    Attributes
    ----------
    began, time
        Times at which it was requested and received.
    digest
        Hash of its keys; None if its other columns do not match its keys.
    state
        The ``state_dict()`` after the batch.
    """

    began: float
    time: float
    epoch: int
    step: int
    rows: int
    digest: str | None
    state: dict[str, Any]

    @property
    def wait_seconds(self) -> float:
        """How long the trainer waited for it."""
        return self.time - self.began


@dataclass(frozen=True)
class Incarnation:
    """A trainer from its start to its death: the state it started from, and its steps."""

    shard: int
    began: float
    state: dict[str, Any] | None
    steps: list[Step]


def write_step(file: IO[str], step: Step) -> None:
    """Append a step to the log."""
    file.write(json.dumps(vars(step)) + "\n")
    file.flush()


def read_incarnation(path: Path, shard: int, began: float, state: dict[str, Any] | None) -> Incarnation:
    """Read the log of one incarnation; an incomplete last line is ignored."""
    return Incarnation(shard, began, state, list(_read(path)))


def _read(path: Path) -> Iterator[Step]:
    if not path.exists():
        return
    for line in path.read_text().splitlines(keepends=True):
        if line.endswith("\n"):
            yield Step(**json.loads(line))


class SharedProgress:
    """Step counts of all trainers, in a file that each of them maps; the last entry is the stop flag."""

    def __init__(self, path: Path, trainers: int) -> None:
        if not path.exists():
            np.zeros(trainers + 1, "<i8").tofile(path)
        self._steps: NDArray[np.int64] = np.memmap(path, "<i8", "r+", shape=(trainers + 1,))

    def set(self, shard: int, steps: int) -> None:
        """Set the steps that a trainer has completed over all epochs."""
        self._steps[shard] = steps

    def minimum(self) -> int:
        """Steps of the slowest trainer."""
        return int(self._steps[:-1].min())

    def steps(self) -> list[int]:
        """Steps of every trainer."""
        return self._steps[:-1].tolist()

    def stop(self) -> None:
        """Stop all trainers."""
        self._steps[-1] = 1

    @property
    def stopped(self) -> bool:
        """Whether the trainers shall stop."""
        return bool(self._steps[-1])
