"""Makes sequences of tokens in a shard, and applies the transforms behind packing to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from windrow.core.arrow_bytes import arrow_bytes
from windrow.pipeline.plan.program import RUN_BYTES
from windrow.pipeline.tasks.map_batches import MapBatches
from windrow.pipeline.tasks.sequence_packing import SequencePacking, transform_sequences

__all__ = ["PackedSequences"]


class PackedSequences:
    """The sequences of one epoch of a shard, which come in spans of whole batches.

    Transforms get as many batches at a time as make about `RUN_BYTES` afterwards, and at first a single one. The size
    of a transformed token is given to ``report`` where it has grown.
    """

    def __init__(
        self,
        packing: SequencePacking,
        after: Sequence[MapBatches],
        batch_size: int,
        report: Callable[[float], None],
    ) -> None:
        self._packing = packing
        self._after = after
        self._batch_size = batch_size
        self._report = report
        self._row_bytes = 0.0

    def of(self, tokens: pa.RecordBatch, origin: str) -> Iterator[pa.RecordBatch]:
        """Yield the sequences of a span; ``origin`` tells whose they are."""
        sequences = self._packing.sequences(tokens)
        if not self._after:
            yield sequences
            return
        at = 0
        while at < sequences.num_rows:
            fitting = int(RUN_BYTES / (self._batch_size * self._row_bytes)) if self._row_bytes else 1
            size = self._batch_size * max(1, fitting)
            found = transform_sequences(
                sequences.slice(at, size), self._after, f"sequences of pack, {origin}"
            )
            self._measure(found)
            yield found
            at += size

    def _measure(self, found: pa.RecordBatch) -> None:
        row_bytes = arrow_bytes(found) / found.num_rows
        if row_bytes > self._row_bytes:
            self._row_bytes = row_bytes
            self._report(row_bytes / self._packing.seq_len)
