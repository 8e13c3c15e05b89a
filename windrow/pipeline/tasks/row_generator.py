"""`RowGenerator`: random numbers keyed by the position of each row, so that they do not depend on how rows are batched.

A transform that needs randomness must give the same row again when a task is retried, a job is resumed, or another
number of processes reads the data. So each row has a stream of its own. Its key is a hash of the seed, the epoch
and the transform; the counter is the row's position and the number of the draw.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from windrow.core.errors import FailedRow
from windrow.shuffle.order.keys import derive_key
from windrow.shuffle.order.philox import WORDS, philox

_ROW_BITS = 40
_DOUBLE = 2.0**-53
# an own generator of a row starts at this draw, so that it shares no counter with the array methods
_OWN_DRAW = 2**31


class RowPositions(Protocol):
    """The positions of the rows of a table that transforms are applied to."""

    def generator(self, stage: int, start: int, rows: int, *, changes_rows: bool) -> RowGenerator:
        """The generator of rows [start, start + rows) of the table for the transform number ``stage``.

        ``changes_rows``: the transform decides how many rows there are, which must be the same in every epoch.
        """

    def find(self, row: int) -> FailedRow | None:
        """Where a row of the table is in its block or epoch; None if that is not known."""


@dataclass(frozen=True)
class StoredRows:
    """The rows of a block before the shuffle."""

    block: int = 0
    epoch: int = 0
    seed: int = 0

    def generator(self, stage: int, start: int, rows: int, *, changes_rows: bool) -> RowGenerator:
        positions = np.arange(start, start + rows, dtype=np.uint64)
        positions += np.uint64(self.block << _ROW_BITS)
        epoch = 0 if changes_rows else self.epoch
        return RowGenerator(_derive(self.seed, epoch, f"stored {stage}"), positions)

    def find(self, row: int) -> FailedRow | None:
        return FailedRow(row, block=self.block)


@dataclass(frozen=True)
class EpochRows:
    """Rows behind the shuffle: consecutive places of one shard's stream."""

    rows: NDArray[np.int64]
    epoch: int
    seed: int = 0

    def generator(self, stage: int, start: int, rows: int, *, changes_rows: bool) -> RowGenerator:
        positions = self.rows[start : start + rows].astype(np.uint64)
        return RowGenerator(_derive(self.seed, self.epoch, f"shuffled {stage}"), positions)

    def find(self, row: int) -> FailedRow | None:
        return FailedRow(int(self.rows[row]), epoch=self.epoch)


def _derive(seed: int, epoch: int, purpose: str) -> int:
    return int.from_bytes(derive_key(seed, f"transform {purpose}", epoch, 0)[:8], "little")


class RowGenerator:
    """Random numbers for the rows of a batch, which every row gets from a stream of its own.

    A function that is called with ``rng=True`` gets one for each batch. What it draws for a row depends only on the
    seed of the shuffle (0 without one), the epoch, the row's position and how many draws came before, never on the
    batch that the row is in. So an augmented row is the same after a retry or a resume, and with any number of
    trainers and workers. Every method draws for all rows at once.

    Examples
    --------
    >>> import windrow
    >>> ds = windrow.range(4)
    >>> def add_noise(batch, rng):
    ...     return {**batch, "noise": rng.random(), "crop": rng.integers(0, 32, size=2)}
    >>> batch = ds.map_batches(add_noise, rng=True).take_batch()
    >>> batch["noise"].shape, batch["crop"].shape
    ((4,), (4, 2))
    >>> one_by_one = ds.map_batches(add_noise, rng=True, batch_size=1).take_batch()
    >>> bool((batch["noise"] == one_by_one["noise"]).all())
    True
    """

    def __init__(self, key: int, positions: NDArray[np.uint64]) -> None:
        self._key = key
        self._positions = positions
        self._draws = 0

    def __len__(self) -> int:
        return len(self._positions)

    def random(self, size: int | tuple[int, ...] | None = None) -> NDArray[np.float64]:
        r"""(rows, \*size) float64, uniform in [0, 1)."""
        return self._doubles(_shape(size))

    def uniform(
        self, low: Any = 0.0, high: Any = 1.0, size: int | tuple[int, ...] | None = None
    ) -> NDArray[np.float64]:
        r"""(rows, \*size) float64, uniform in [low, high)."""
        return low + (np.asarray(high) - low) * self._doubles(_shape(size))

    def normal(
        self, loc: Any = 0.0, scale: Any = 1.0, size: int | tuple[int, ...] | None = None
    ) -> NDArray[np.float64]:
        r"""(rows, \*size) float64 from the normal distribution with mean ``loc`` and deviation ``scale``."""
        shape = _shape(size)
        # Box-Muller; 1 - u is never 0
        pairs = self._doubles((*shape, 2))
        radius = np.sqrt(-2.0 * np.log1p(-pairs[..., 0]))
        return loc + scale * radius * np.cos(2.0 * np.pi * pairs[..., 1])

    def integers(
        self, low: int, high: int | None = None, size: int | tuple[int, ...] | None = None
    ) -> NDArray[np.int64]:
        r"""(rows, \*size) int64, uniform in [low, high); with ``high=None``, in [0, low).

        Raises
        ------
        ValueError
            If the range is empty, or has more than 2**53 integers.
        """
        first, stop = (0, low) if high is None else (low, high)
        if not 0 < stop - first <= 2**53:
            raise ValueError(f"integers({low}, {high}): the range must have 1 to 2**53 integers")
        offsets = np.floor(self._doubles(_shape(size)) * (stop - first)).astype(np.int64)
        return first + offsets

    def generators(self) -> Iterator[np.random.Generator]:  # noqa: TID251
        """Yield a ``numpy.random.Generator`` for each row, for everything else that can be drawn.

        Making one takes some microseconds. NumPy may change what its methods draw from one version to another.
        """
        draw = self._next_draw() + _OWN_DRAW
        for position in self._positions:
            # the lowest word counts what the generator draws
            bits = np.random.Philox(key=self._key, counter=np.array([0, draw, position, 0], np.uint64))
            yield np.random.Generator(bits)  # noqa: TID251

    def take(self, rows: NDArray[np.int64]) -> RowGenerator:
        """A generator for some of the rows, by their numbers in the batch; it has drawn nothing yet."""
        return RowGenerator(self._key, self._positions[rows])

    def with_seed(self, seed: int) -> RowGenerator:
        """A generator for the same rows, with a seed of its own for every epoch; it has drawn nothing yet."""
        return RowGenerator(_derive(seed, 0, "of its own"), self._positions)

    def _next_draw(self) -> int:
        draw, self._draws = self._draws, self._draws + 1
        return draw

    def _doubles(self, shape: tuple[int, ...]) -> NDArray[np.float64]:
        values = math.prod(shape)
        rows, blocks = len(self._positions), -(-2 * values // WORDS)
        draw = self._next_draw() << 32
        high = np.repeat(self._positions, blocks)
        low = np.tile(np.arange(draw, draw + blocks, dtype=np.uint64), rows)
        words = philox(self._key, high, low).reshape(rows, blocks * WORDS)[:, : 2 * values].astype(np.uint64)
        pairs = words.reshape(rows, values, 2)
        whole = (pairs[..., 0] << np.uint64(32) | pairs[..., 1]) >> np.uint64(11)
        return (whole * _DOUBLE).reshape(rows, *shape)


def _shape(size: int | tuple[int, ...] | None) -> tuple[int, ...]:
    shape = () if size is None else tuple(size) if isinstance(size, (tuple, list)) else (int(size),)
    if any(length < 0 for length in shape):
        raise ValueError(f"size={size!r} must not be negative")
    return shape
