"""Chooses the batches of an epoch that are measured: all of them, or as many as a fixed budget allows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windrow.shuffle.order.keys import derive_key

__all__ = ["MAX_BATCH_ROWS", "BatchSample", "choose_batches"]

Ints = NDArray[np.int64]

# A million positions take seconds and some 100 MB.
_MAX_ROWS = 2**19
_MAX_SEGMENTS = 512
# An order of up to 2^16 rows is computed as a whole, in milliseconds.
_MAX_WINDOWS = 512
# Neighbours are compared within a segment, so that of tiny batches it holds several.
_MIN_SEGMENT_ROWS = 256
MAX_BATCH_ROWS = 2**20


@dataclass(frozen=True, eq=False)
class BatchSample:
    """Segments of an epoch: each is ``batches`` whole batches in turn."""

    starts: Ints  # (segments,) the first row of each, ascending
    batches: int  # of a segment
    batch_rows: int

    @property
    def segment_rows(self) -> int:
        """Rows of a segment."""
        return self.batches * self.batch_rows

    @property
    def rows(self) -> Ints:
        """(segments · segment_rows,) the rows of the epoch that are measured, ascending."""
        return (self.starts[:, None] + np.arange(self.segment_rows)).ravel()


def choose_batches(total: int, batch_rows: int, windows: int) -> BatchSample:
    """Choose full batches of an epoch of ``total`` rows, evenly spread over it, always the same ones.

    An epoch of up to 2^19 rows is measured whole if it has at most 512 windows. Of a larger one, at most that many
    rows are chosen, in at most 512 segments; a single batch can exceed that. A dataset of less than a batch is one
    batch.

    >>> sample = choose_batches(10_000_000, 4096, windows=16)
    >>> len(sample.starts), sample.segment_rows
    (128, 4096)
    >>> sample = choose_batches(1000, 300, windows=1)
    >>> sample.batches, len(sample.rows)
    (3, 900)
    """
    size = min(batch_rows, total)
    each = min(max(1, -(-_MIN_SEGMENT_ROWS // size)), total // size)
    if total <= _MAX_ROWS and windows <= _MAX_WINDOWS:
        # all batches are one segment, so that all neighbours are compared
        whole = total // size
        return BatchSample(np.arange(1, dtype=np.int64), whole, size)
    segments = total // (each * size)
    touched = max(1, each * size * windows // total)
    chosen = max(1, min(segments, _MAX_SEGMENTS, _MAX_ROWS // (each * size), _MAX_WINDOWS // touched))
    # one in each of equally large parts of the epoch
    raw = np.random.Philox(key=int.from_bytes(derive_key(0, "report", 0, 0)[:16], "little")).random_raw(
        chosen
    )
    parts = np.arange(chosen + 1, dtype=object) * segments // chosen
    places = [
        int(first + draw % (stop - first))
        for first, stop, draw in zip(parts[:-1], parts[1:], raw.tolist(), strict=True)
    ]
    return BatchSample(np.array(places, np.int64) * (each * size), each, size)
