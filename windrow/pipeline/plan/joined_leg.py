"""A leg of a mixture whose sequences join documents of all sources: their lengths are known before any is read."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from windrow.core.cached_properties import cached_property
from windrow.pipeline.plan.cursor import JoinedPoint, MixturePoint
from windrow.pipeline.plan.document_order import DocumentOrder, Phases, find_phases, order_window_of
from windrow.pipeline.plan.leg import Leg
from windrow.pipeline.plan.leg_order import LegOrder
from windrow.pipeline.plan.mixed_source import NeededWindow, window_work
from windrow.pipeline.plan.mixture import Mixture

Ints = NDArray[np.int64]


class JoinedLeg(Leg):
    """A leg whose rows are sequences of tokens; documents are planned when the first of them is needed."""

    def __init__(self, mixture: Mixture, point: MixturePoint, row: int, step_rows: int) -> None:
        super().__init__(mixture, point, row, step_rows)
        assert point.joined is not None, "documents are joined"
        assert point.steps_row == row, "a point tells of the documents before its row"
        self._joined = point.joined
        self.seq_len = mixture.row_tokens

    # --- documents

    @cached_property
    def _phases(self) -> Phases:
        return find_phases(self.mixture, self.point, self._step_rows * self.seq_len)

    @cached_property
    def order_of_documents(self) -> DocumentOrder:
        """The leg's documents, of which the last ones can lie behind it."""
        found = DocumentOrder(self.mixture, self.point, self._phases)
        wanted = self._wanted_documents
        found.extend(wanted)
        # at least one step
        while not found.is_over and self._whole_steps(found) == self.row:
            found.extend(wanted)
        return found

    @property
    def _wanted_documents(self) -> int:
        weights = np.array(self._phases.weights[0], np.float64)
        if self.mixture.unit == "tokens":
            # a source with long documents has fewer of them
            weights *= [each.pass_rows / max(1, each.pass_tokens) for each in self.mixture.sources]
        per_document = sum(
            weight / weights.sum() * each.windows_per_pass / each.pass_rows * window_work(each)
            for weight, each in zip(weights.tolist(), self.mixture.sources, strict=True)
            if each.pass_rows
        )
        return max(1, min(self._measured_rows, int(self._work_budget / per_document)))

    def _whole_steps(self, documents: DocumentOrder) -> int:
        """The sequence up to which documents fill whole steps."""
        sequences = documents.token // self.seq_len
        return self.row + (sequences - self.row) // self._step_rows * self._step_rows

    @property
    def stop(self) -> int:
        """The sequence behind the last one."""
        found = self.order_of_documents
        return found.token // self.seq_len if found.is_over else self._whole_steps(found)

    @property
    def is_last(self) -> bool:
        """Whether the mixture ends with this leg."""
        return self.order_of_documents.is_over

    @property
    def goes_on(self) -> bool:
        """Whether the mixture can go on from the point by the shares that hold there.

        A source with fewer passes than it has begun cannot.
        """
        totals = [source.total_rows for source in self.mixture.sources]
        return not any(
            weight and total is not None and begun < total < count
            for weight, total, begun, count in zip(
                self._phases.weights[0], totals, self.point.counts, self._joined.counts, strict=True
            )
        )

    def _begun(self, row: int) -> int:
        """How many of the leg's documents begin before a sequence."""
        return int(np.searchsorted(self.order_of_documents.starts, row * self.seq_len))

    # --- what is known at a sequence

    def point_at(self, row: int) -> MixturePoint:
        """What has to be known at a sequence to go on from there."""
        if row == self.row:
            return self.point
        found, begun = self.order_of_documents, self._begun(row)
        counts = tuple(found.count(np.array([begun], np.int64))[:, 0].tolist())
        documents = self._joined.documents + begun - bool(self._joined.left)
        source, left = 0, 0
        if begun:
            stop = int(found.starts[begun - 1] + found.lengths[begun - 1])
            left = max(0, stop - row * self.seq_len)
            source = int(found.sources[begun - 1]) if left else 0
        span = found.span_before(begun)
        tokens = found.tokens_of(span, begun)
        changed, since = span.row, span.counts
        if self._phases.at(documents, row * self.seq_len) != span.phase:
            # the next document begins by other shares
            changed, since, tokens = documents, counts, (0,) * len(tokens)
        ahead, rest = divmod(row - self.point.steps_row, self._step_rows)
        # the mixture can end within a step, which has then been taken
        steps = self.point.steps + ahead + (rest > 0 and row == self.stop)
        joined = JoinedPoint(documents, counts, source, left, tokens)
        return replace(self.point, counts=since, row=changed, steps=steps, steps_row=row, joined=joined)

    def _joined_at(self, row: int) -> JoinedPoint:
        joined = self.point_at(row).joined
        assert joined is not None, "documents are joined"
        return joined

    def counts_at(self, row: int) -> Ints:
        """(sources,) the documents of each source that begin before a sequence."""
        return np.array(self._joined_at(row).counts, np.int64)

    def shared_rows(self, row: int) -> int:
        """How many documents begin before a sequence."""
        return self._joined_at(row).documents

    def rows_before(self, rows: Ints) -> Ints:
        """(sources, rows) the documents of each source that begin before some sequences of the leg."""
        found = self.order_of_documents
        return found.count(np.searchsorted(found.starts, rows * self.seq_len))

    def weights_at(self, row: int) -> Ints:
        """(sources,) the weights of the phase that holds at a sequence, those of exhausted sources included."""
        phase = 0 if row == self.row else self._phases.at(self.shared_rows(row), row * self.seq_len)
        return np.array(self._phases.weights[phase], np.int64)

    def begun_at(self, row: int) -> list[int]:
        """The documents of each source when the shares last changed before a sequence; -1: it had no more."""
        totals = [source.total_rows for source in self.mixture.sources]
        return [
            -1 if weight and total is not None and count >= total else count
            for count, weight, total in zip(
                self.point_at(row).counts, self.weights_at(row).tolist(), totals, strict=True
            )
        ]

    def agrees(self, other: Leg) -> bool:
        """Whether both have the same rows from where the later one starts."""
        row = max(self.row, other.row)
        mine, theirs = self.point_at(row), other.point_at(row)
        is_same = (mine.joined, mine.row, mine.counts) == (theirs.joined, theirs.row, theirs.counts)
        return is_same and bool((self.weights_at(row) == other.weights_at(row)).all())

    def serves(self, point: MixturePoint, row: int, step_rows: int, order: LegOrder | None = None) -> bool:
        """Whether this leg, which has been planned, holds what a leg from ``row`` on would."""
        if step_rows != self._step_rows:
            return False
        if (point, row) == (self.point, self.row):
            return True
        if not self.row <= row <= self.stop or self.point_at(row) != point:
            return False
        return JoinedLeg(self.mixture, point, row, step_rows).stop == self.stop

    # --- windows

    @cached_property
    def windows(self) -> list[NeededWindow]:
        """The source windows that hold tokens of the leg."""
        found, size = self.order_of_documents, self.seq_len
        needed, stops = [], found.starts + found.lengths
        for source, stream in enumerate(found.streams):
            own, first = found.by_source[source], int(found.firsts[source])
            own = own[: int(np.searchsorted(found.starts[own], self.stop * size))]
            for window in stream.windows:
                of_window = own[max(0, window.start - first) : max(0, window.stop - first)]
                of_window = of_window[found.lengths[of_window] > 0]
                if not len(of_window):
                    continue
                begin = max(int(found.starts[of_window[0]]), self.row * size)
                end = min(int(stops[of_window[-1]]), self.stop * size)
                if begin < end:
                    needed.append(NeededWindow(source, window, begin // size, -(-end // size)))
        return sorted(needed, key=lambda each: (each.first_row, each.source))

    def place_documents(self, needed: NeededWindow, lengths: NDArray[np.int32]) -> Ints:
        """(documents,) the token at which each stored document of a source's window begins, given their lengths.

        Documents that come nowhere end before the first token of the mixture.
        """
        found = self.order_of_documents
        own = found.by_source[needed.source]
        numbers = order_window_of(self.mixture.sources[needed.source], needed.window, len(lengths))
        at = numbers + needed.window.start - int(found.firsts[needed.source])
        (is_planned,) = np.nonzero((at >= 0) & (at < len(own)))
        starts = -lengths.astype(np.int64)
        starts[is_planned] = found.starts[own[at[is_planned]]]
        return starts
