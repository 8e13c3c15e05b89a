"""What a trainer writes down of every step, in a file that outlives it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Life", "Pace", "Step", "read_life", "write_step"]


@dataclass(frozen=True)
class Step:
    """One batch that a trainer got.

    Attributes
    ----------
    began, time
        When it was asked for, and when it was there.
    digest
        Of its keys; None where its other columns do not belong to its keys.
    state
        What ``state_dict()`` said then.
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
        """How long it was waited for."""
        return self.time - self.began


@dataclass(frozen=True)
class Life:
    """A trainer from its start to its death: where it began, and all its steps."""

    shard: int
    began: float
    state: dict[str, Any] | None
    steps: list[Step]


def write_step(file: IO[str], step: Step) -> None:
    """Add a line."""
    file.write(json.dumps(vars(step)) + "\n")
    file.flush()


def read_life(path: Path, shard: int, began: float, state: dict[str, Any] | None) -> Life:
    """Read what one life has written; a line that death cut short is none."""
    return Life(shard, began, state, list(_read(path)))


def _read(path: Path) -> Iterator[Step]:
    if not path.exists():
        return
    for line in path.read_text().splitlines(keepends=True):
        if line.endswith("\n"):
            yield Step(**json.loads(line))


class Pace:
    """How far every trainer is, in a file that all of them map; the last entry ends the run."""

    def __init__(self, path: Path, trainers: int) -> None:
        if not path.exists():
            np.zeros(trainers + 1, "<i8").tofile(path)
        self._steps: NDArray[np.int64] = np.memmap(path, "<i8", "r+", shape=(trainers + 1,))

    def set(self, shard: int, steps: int) -> None:
        """A trainer has done so many steps, over all epochs."""
        self._steps[shard] = steps

    def least(self) -> int:
        """Steps of the trainer that is farthest behind."""
        return int(self._steps[:-1].min())

    def steps(self) -> list[int]:
        """Steps of every trainer."""
        return self._steps[:-1].tolist()

    def stop(self) -> None:
        """End the run."""
        self._steps[-1] = 1

    @property
    def stopped(self) -> bool:
        """Whether the run has ended."""
        return bool(self._steps[-1])
