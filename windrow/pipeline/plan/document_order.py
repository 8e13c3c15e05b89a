"""In which order the documents of several sources come in a mixture whose sequences join them."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windrow.core.cached_properties import cached_property
from windrow.pipeline.plan.cursor import MixturePoint
from windrow.pipeline.plan.mixed_source import MixedSource, SourceWindow
from windrow.pipeline.plan.mixture import Mixture
from windrow.shuffle.order.keys import derive_key
from windrow.shuffle.order.permutation import Permutation
from windrow.shuffle.order.share_sequence import share_sequence
from windrow.shuffle.order.token_shares import share_tokens

Ints = NDArray[np.int64]

_MOST_AT_ONCE = 2**16
_MAX_PLACE = 2**62


class DocumentStream:
    """The documents of a source from one on, up to ``stop``, window by window, as far as they are needed."""

    def __init__(self, source: MixedSource, first: int, stop: int = _MAX_PLACE) -> None:
        self.source = source
        self.first = first
        self.windows: list[SourceWindow] = []
        self._count = max(0, stop - first)
        # a document that goes on can be of a pass that the source no longer has
        self._left = source.windows(first, is_endless=True)
        self._tokens = np.zeros(0, np.int32)

    def load(self, count: int) -> NDArray[np.int32]:
        """(documents,) the tokens of so many documents or more; of fewer where the source ends."""
        found, known, count = [self._tokens], len(self._tokens), min(count, self._count)
        while known < count:
            window = next(self._left)
            of_window = self._order(window)[max(0, self.first - window.start) :]
            self.windows.append(window)
            found.append(of_window)
            known += len(of_window)
        if len(found) > 1:
            self._tokens = np.concatenate(found)[: self._count]
        return self._tokens

    def _order(self, window: SourceWindow) -> NDArray[np.int32]:
        source = self.source
        assert source.tokens is not None, "documents are counted before they are joined"
        stored = source.select(source.tokens, window)
        found = np.empty_like(stored)
        found[order_window_of(source, window, len(stored))] = stored
        return found


def order_window_of(source: MixedSource, window: SourceWindow, rows: int) -> Ints:
    """(rows,) the place of each stored row of a source's window in it."""
    key = source.window_key(window)
    return np.arange(rows, dtype=np.int64) if key is None else Permutation(key, rows).positions(0, rows)


def document_length(source: MixedSource, number: int) -> int:
    """The tokens of a source's document, which can be of any pass."""
    return int(DocumentStream(source, number).load(1)[0])


@dataclass(frozen=True)
class Phases:
    """The phases from a point of a mixture on: where each begins, as a document or a token, and its weights.

    The first one holds there.
    """

    by_documents: bool
    starts: list[int]
    weights: list[tuple[int, ...]]

    def at(self, documents: int, token: int) -> int:
        """The phase that holds where so many documents have begun, at a token."""
        return max(0, bisect_right(self.starts, documents if self.by_documents else token) - 1)


def find_phases(mixture: Mixture, point: MixturePoint, step_tokens: int) -> Phases:
    """The phases from a point on, where steps have so many tokens."""
    if point.shares is not None:
        return Phases(True, [0], [point.shares])
    assert point.joined is not None, "documents are joined"
    shares, unit, names = mixture.shares, mixture.shares.unit, mixture.names
    token = point.steps_row * mixture.row_tokens
    places = {"steps": point.steps, "rows": point.joined.documents, "tokens": token}
    current = shares.phase_at(places[unit])
    starts = [0]
    for phase in shares.phases[current + 1 :]:
        by_steps = token + (phase.start - point.steps) * step_tokens
        starts.append(by_steps if unit == "steps" else phase.start)
    return Phases(unit == "rows", starts, [phase.weights(names) for phase in shares.phases[current:]])


@dataclass(frozen=True)
class Span:
    """Documents that come by the same shares, from the document ``index`` of the order on.

    These shares hold since the mixture's document ``row``, before which each source has had ``counts``. Up to that
    index, it has had ``tokens`` of them.
    """

    index: int
    row: int
    counts: tuple[int, ...]
    phase: int
    tokens: tuple[int, ...]


class DocumentOrder:
    """The documents of a mixture from a point on; the first one is that which goes on there, if one does."""

    def __init__(self, mixture: Mixture, point: MixturePoint, phases: Phases) -> None:
        assert point.joined is not None, "documents are joined"
        self._mixture, self._phases = mixture, phases
        joined = point.joined
        # how many have begun, of all and of each source, and the token at which the next one begins
        self._row, self._counts = joined.documents, np.array(joined.counts, np.int64)
        self.token = point.steps_row * mixture.row_tokens + joined.left
        open_ones = np.zeros(len(joined.counts), np.int64)
        if joined.left:
            open_ones[joined.source] = 1
        self.firsts = self._counts - open_ones
        totals = [source.total_rows for source in mixture.sources]
        self._limits = np.array([_MAX_PLACE if total is None else total for total in totals], np.int64)
        stops = np.maximum(self._limits, self._counts)
        self.streams = [
            DocumentStream(*each)
            for each in zip(mixture.sources, self.firsts.tolist(), stops.tolist(), strict=True)
        ]
        self._sources: list[NDArray[np.int32]] = []
        self._lengths: list[NDArray[np.int32]] = []
        self._length = 0
        if joined.left:
            self._sources.append(np.array([joined.source], np.int32))
            self._lengths.append(self.streams[joined.source].load(1)[:1])
            self._length = 1
        self.spans = [Span(self._length, point.row, point.counts, 0, joined.tokens)]
        # tokens that each source has had of the shares that hold
        self._tokens = np.array(joined.tokens, np.int64)
        self.is_over = False

    def __len__(self) -> int:
        return self._length

    def extend(self, documents: int) -> None:
        """Add about so many documents, or those up to the mixture's end."""
        stop = len(self) + documents
        while len(self) < stop and not self.is_over:
            row = self._row
            phase = self._phases.at(row, self.token)
            if phase != self.spans[-1].phase:
                self._begin_span(phase)
            span = self.spans[-1]
            weights = np.array(self._phases.weights[phase], np.int64)
            held = np.where(np.array(span.counts) < self._limits, weights, 0)
            if not held.any() or (self._mixture.when_exhausted != "drop" and (held != weights).any()):
                self.is_over = True
                return
            later = self._phases.starts[phase + 1 :]
            change = later[0] if later else _MAX_PLACE
            most = min(stop - len(self), _MOST_AT_ONCE)
            if self._phases.by_documents:
                most = min(most, change - row)
                change = _MAX_PLACE
            # of documents with few tokens
            most = min(most, max(1, change - self.token))
            if self._mixture.unit == "tokens":
                is_exhausted = self._add_by_tokens(held, span, row, most, change)
            else:
                is_exhausted = self._add_by_rows(held, span, row, most, change)
            if is_exhausted and self._mixture.when_exhausted == "drop":
                self._begin_span(phase)
            elif is_exhausted:
                self.is_over = True

    def _begin_span(self, phase: int) -> None:
        self._tokens[:] = 0
        counts, tokens = tuple(self._counts.tolist()), tuple(self._tokens.tolist())
        self.spans.append(Span(len(self), self._row, counts, phase, tokens))

    def _add_by_rows(self, held: Ints, span: Span, row: int, most: int, change: int) -> bool:
        """Add documents by shares of documents; returns whether one comes next of a source that has no more."""
        sequence = share_sequence(tuple(held.tolist()), derive_key(self._mixture.seed, "shares", span.row, 0))
        sources = sequence.sources_of(row - span.row, most)
        counts = np.bincount(sources, minlength=len(held))
        # those of each source, one source after the other
        order = np.argsort(sources, kind="stable")
        lengths, cut, before = np.zeros(most, np.int32), most, 0
        for source in np.flatnonzero(counts).tolist():
            at = order[before : before + counts[source]]
            before += int(counts[source])
            taken = int(self._counts[source] - self.firsts[source])
            found = self.streams[source].load(taken + len(at))[taken : taken + len(at)]
            lengths[at[: len(found)]] = found
            if len(found) < len(at):
                cut = min(cut, int(at[len(found)]))
        starts = self.token + np.cumsum(lengths[:cut], dtype=np.int64) - lengths[:cut]
        changed = int(np.searchsorted(starts, change))
        self._add(sources[:changed], lengths[:changed])
        # where shares change, others tell what comes next
        return cut < most and changed == cut and self.token < change

    def _add_by_tokens(self, held: Ints, span: Span, row: int, most: int, change: int) -> bool:
        """The same by shares of tokens."""
        key = derive_key(self._mixture.seed, "shares", span.row, 0)
        ahead = max(1, most // max(1, int(np.count_nonzero(held))))
        expected = dict.fromkeys(np.flatnonzero(held).tolist(), ahead)
        while most:
            documents = [np.zeros(0, np.int32)] * len(held)
            for source, count in expected.items():
                taken = int(self._counts[source] - self.firsts[source])
                documents[source] = self.streams[source].load(taken + count)[taken : taken + count]
            given = int(self._tokens.sum())
            sources, missing = share_tokens(
                held,
                self._tokens,
                documents,
                most=most,
                stop=min(_MAX_PLACE, given + change - self.token),
                place=row - span.row,
                key=key,
            )
            counts = np.bincount(sources, minlength=len(held))
            lengths = np.empty(len(sources), np.int32)
            for source in np.flatnonzero(counts).tolist():
                lengths[sources == source] = documents[source][: counts[source]]
            self._add(sources, lengths)
            self._tokens += np.bincount(sources, lengths, minlength=len(held)).astype(np.int64)
            most -= len(sources)
            row += len(sources)
            if missing is None:
                return False
            if not counts[missing] and not len(documents[missing]):
                return True
            expected[missing] = max(ahead, len(documents[missing]))
        return False

    def _add(self, sources: NDArray[np.int32], lengths: NDArray[np.int32]) -> None:
        self._sources.append(sources)
        self._lengths.append(lengths)
        self._counts += np.bincount(sources, minlength=len(self._counts))
        self._row += len(sources)
        self._length += len(sources)
        self.token += int(lengths.sum(dtype=np.int64))

    # --- once it is whole

    @cached_property
    def sources(self) -> NDArray[np.int32]:
        """(documents,) the source of each."""
        return np.concatenate([np.zeros(0, np.int32), *self._sources])

    @cached_property
    def lengths(self) -> NDArray[np.int32]:
        """(documents,) the tokens of each."""
        return np.concatenate([np.zeros(0, np.int32), *self._lengths])

    @cached_property
    def starts(self) -> Ints:
        """(documents,) the token of the mixture at which each begins."""
        stops = np.cumsum(self.lengths, dtype=np.int64)
        found: Ints = self.token - int(stops[-1] if len(stops) else 0) + stops - self.lengths
        return found

    @cached_property
    def by_source(self) -> list[Ints]:
        """By source, which of the documents are its."""
        # NumPy sorts numbers of 16 bits in a pass
        small = self.sources.astype(np.uint16) if len(self._counts) <= 2**16 else self.sources
        order = np.argsort(small, kind="stable")
        return np.split(order, np.cumsum(self._counts - self.firsts)[:-1])

    @cached_property
    def _tokens_before(self) -> list[Ints]:
        """By source, (documents + 1,) the tokens before each of its documents."""
        return [np.append(0, np.cumsum(self.lengths[own], dtype=np.int64)) for own in self.by_source]

    def count(self, documents: Ints) -> Ints:
        """(sources, rows) how many documents each source has begun before some of the documents."""
        found = [np.searchsorted(own, documents) for own in self.by_source]
        return np.array(found, np.int64).reshape(len(found), -1) + self.firsts[:, None]

    def tokens_of(self, span: Span, documents: int) -> tuple[int, ...]:
        """(sources,) the tokens that each has had of a span's shares up to a document; () if shares are of rows."""
        if not span.tokens:
            return ()
        first, last = self.count(np.array([span.index, documents], np.int64)).T - self.firsts
        own = [
            int(before[stop] - before[start])
            for before, start, stop in zip(self._tokens_before, first, last, strict=True)
        ]
        return tuple(known + more for known, more in zip(span.tokens, own, strict=True))

    def span_before(self, documents: int) -> Span:
        """The span of the last one of the first documents; that which the point is in, if there is none."""
        return [self.spans[0], *(each for each in self.spans[1:] if each.index < documents)][-1]
