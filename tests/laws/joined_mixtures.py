"""Mixtures whose sequences join documents of all sources: what they must deliver by a reference, token by token."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import groupby
from typing import Any

from hypothesis import strategies as st

from tests.laws.cases import EOS, tokenize, tokens_of
from tests.laws.mixture_cases import MIXTURES, NAMES, MixedCase, MixtureReading, schedules
from tests.laws.reading import take_rows
from tests.laws.reference import assign_as_lists, divide_by_cost
from windrow import mixture
from windrow.dataset.dataset import DatasetPipeline
from windrow.pipeline.executors.base import Executor
from windrow.pipeline.plan.mixture import MixtureUnit
from windrow.pipeline.plan.shares import make_shares
from windrow.pipeline.tasks.map_batches import MapBatches
from windrow.shuffle.order.balance import Balance
from windrow.shuffle.order.keys import derive_key
from windrow.shuffle.order.shard_assignment import Equal
from windrow.shuffle.order.share_sequence import share_sequence
from windrow.shuffle.order.token_shares import _draw

__all__ = ["JOINED", "JoinedCase", "JoinedReading"]

_NO_END = 10**9


@dataclass(frozen=True)
class JoinedCase:
    """How the documents of a mixture are packed."""

    mixed: MixedCase
    seq_len: int
    has_eos: bool = True
    unit: MixtureUnit = "rows"

    def pipeline(self, executor: str | Executor) -> DatasetPipeline:
        sources = {}
        for number in self.mixed.members:
            plan = self.mixed.sources[number].pipeline(number)._plan
            sources[NAMES[number]] = DatasetPipeline(replace(plan, before=(MapBatches(tokenize),)))
        options: Any = {"when_exhausted": self.mixed.when_exhausted, "unit": self.unit}
        pipe = mixture(sources, self.mixed.shares, seed=self.mixed.seed, **options)
        eos = {"x": EOS, "half": EOS / 2} if self.has_eos else None
        return pipe.pack(self.seq_len, ["x", "half", "flag"], eos=eos).options(
            executor=executor, progress=False
        )

    @property
    def delivers(self) -> bool:
        """Whether it has a sequence, without which there is nothing to pack."""
        return bool(JoinedRows(self).step(1))

    def document(self, name: str, number: int) -> list[int]:
        """The tokens of a source's document."""
        at = NAMES.index(name)
        (x,) = self.mixed.sources[at].rows(at, number, 1)
        tokens = tokens_of(x)
        return [*tokens, EOS] if tokens and self.has_eos else tokens


@dataclass
class JoinedRows:
    """The mixture's sequences by the laws, document by document.

    ``sequences`` have been delivered. ``pending`` are the tokens behind them of documents that have begun, each with
    the number of its document. Shares hold since the document ``start``, before which each source has had ``began``.
    """

    case: JoinedCase
    sequences: int = 0
    steps: int = 0
    step_rows: int = 1
    documents: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    pending: list[tuple[int, int]] = field(default_factory=list)
    owner: str = ""  # of the last document
    phase: int | None = None
    weights: dict[str, int] = field(default_factory=dict)
    set_weights: dict[str, int] | None = None
    start: int = 0
    began: dict[str, int] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)
    # where steps are numbered from
    steps_row: int = 0

    @property
    def names(self) -> list[str]:
        return self.case.mixed.names

    def step(self, rows: int) -> list[list[tuple[int, int]]]:
        """The sequences of the next step; fewer if the mixture ends."""
        self.step_rows, self.steps_row = rows, self.sequences
        found: list[list[tuple[int, int]]] = []
        while len(found) < rows:
            before = deepcopy(self.__dict__)
            while len(self.pending) < self.case.seq_len and self._begin_document():
                pass
            if len(self.pending) < self.case.seq_len:
                # documents that begin behind the end have not begun
                self.__dict__.update(before)
                break
            found.append(self.pending[: self.case.seq_len])
            self.pending = self.pending[self.case.seq_len :]
            self.sequences += 1
        self.steps += bool(found)
        self.steps_row = self.sequences
        return found

    def _phase_at(self, token: int) -> int:
        shares, size = self.case.mixed.shares, self.case.seq_len
        if shares.unit == "rows":
            return shares.phase_at(self.documents)
        if shares.unit == "tokens":
            return shares.phase_at(token)
        return max(
            number
            for number, each in enumerate(shares.phases)
            if each.start <= self.steps
            or (self.steps_row + (each.start - self.steps) * self.step_rows) * size <= token
        )

    def follow(self, token: int) -> None:
        """Follow the schedule up to a token."""
        self.counts = self.counts or dict.fromkeys(self.names, 0)
        if self.set_weights is not None:
            return
        phase = self._phase_at(token)
        if phase != self.phase:
            self.phase = phase
            weights = self.case.mixed.shares.phases[phase].weights(self.names)
            self.begin(dict(zip(self.names, weights, strict=True)))

    def begin(self, weights: Mapping[str, int]) -> None:
        """Shares count from here on."""
        self.counts = self.counts or dict.fromkeys(self.names, 0)
        self.weights, self.start, self.began = dict(weights), self.documents, dict(self.counts)
        self.tokens = dict.fromkeys(self.names, 0)

    def is_gone(self, name: str) -> bool:
        """Whether a source had no documents left when the shares last changed."""
        return bool(self.weights[name]) and self.began[name] >= self.limit(name)

    def limit(self, name: str) -> int:
        return self.case.mixed.limit(name)

    def _begin_document(self) -> bool:
        self.follow(self.sequences * self.case.seq_len + len(self.pending))
        when = self.case.mixed.when_exhausted
        while True:
            held = {name: 0 if self.is_gone(name) else self.weights[name] for name in self.names}
            if not any(held.values()) or (when != "drop" and held != self.weights):
                return False
            source = self._choose(held)
            if self.counts[source] < self.limit(source):
                break
            if when != "drop":
                return False
            self.begin(self.weights)
        tokens = self.case.document(source, self.counts[source])
        self.pending += [(token, self.documents) for token in tokens]
        self.counts[source] += 1
        self.documents += 1
        self.tokens[source] += len(tokens)
        self.owner = source
        self._check_shares(held)
        return True

    def _choose(self, held: Mapping[str, int]) -> str:
        key = derive_key(self.case.mixed.seed, "shares", self.start, 0)
        if self.case.unit == "rows":
            sequence = share_sequence(tuple(held.values()), key)
            return self.names[int(sequence.sources[(self.documents - self.start) % sequence.period])]
        total, given = sum(held.values()), sum(self.tokens.values())
        due = [name for name in held if held[name] and self.tokens[name] * total <= given * held[name]]
        for name in due:
            if self.counts[name] >= self.limit(name):
                return name
        ends = {
            name: Fraction(self.tokens[name] + len(self.case.document(name, self.counts[name])), held[name])
            for name in due
        }
        seed, place = int.from_bytes(key[:8], "little"), self.documents - self.start
        return min(due, key=lambda name: (ends[name], -_draw(seed, place, self.names.index(name))))

    def _check_shares(self, held: Mapping[str, int]) -> None:
        """A source has less than a document more or less than its share since shares last changed."""
        total = sum(held.values())
        if self.case.unit == "tokens":
            longest, given = 3 + self.case.has_eos, sum(self.tokens.values())
            for name, tokens in self.tokens.items():
                assert abs(tokens * total - held[name] * given) <= longest * total, (name, self.tokens, held)
            return
        rows = self.documents - self.start
        for name, count in self.counts.items():
            done = count - self.began[name]
            assert abs(done * total - held[name] * rows) < total, (name, done, rows)

    def resumed(self, case: JoinedCase) -> JoinedRows:
        """The sequences of another mixture that goes on here."""
        token = self.sequences * self.case.seq_len
        self.steps_row = self.sequences
        self.follow(token)
        found = deepcopy(self)
        found.case = case
        found.counts = {name: self.counts.get(name, 0) for name in case.mixed.names}
        if self.pending and self.owner not in case.mixed.names:
            # the source of the document that has begun is left out
            found.pending = []
        then, now = self.case, case
        is_same = then.mixed.names == now.mixed.names and then.mixed.shares == now.mixed.shares
        is_same = is_same and then.mixed.when_exhausted == now.mixed.when_exhausted and then.unit == now.unit
        found.set_weights = self.set_weights if is_same else None
        found.phase = found._phase_at(token) if found.set_weights is None else None
        weights = found.set_weights
        if weights is None:
            assert found.phase is not None
            names = case.mixed.names
            weights = dict(zip(names, now.mixed.shares.phases[found.phase].weights(names), strict=True))
        goes_on = then.mixed.names == now.mixed.names and weights == self.weights and then.unit == now.unit
        if goes_on:
            for name in case.mixed.names:
                # with what it had when shares changed, or what it has now if it had none left then
                began = self.counts[name] if self.is_gone(name) else self.began[name]
                had_none = bool(weights[name]) and began >= found.limit(name)
                goes_on = goes_on and had_none == self.is_gone(name)
                is_over = weights[name] and began < found.limit(name) < self.counts[name]
                goes_on = goes_on and not is_over
                found.began = {**found.began, name: began}
        if not goes_on:
            found.begin(weights)
        return found

    def set_shares(self, shares: Mapping[str, Any]) -> None:
        self.set_weights = dict(
            zip(self.names, make_shares(shares).phases[0].weights(self.names), strict=True)
        )
        self.phase = None
        self.begin(self.set_weights)


class JoinedReading(MixtureReading):
    """Shards of such a mixture, or replicas of each, read step by step, and compared with the reference."""

    def __init__(
        self,
        case: JoinedCase,
        executor: str | Executor,
        balance: Balance | None = None,
        replicas: int | None = None,
    ) -> None:
        super().__init__(case.mixed, executor, balance, replicas)
        self.joined = JoinedRows(case)

    def split(self, shards: int, equal: Equal = False, state: dict[str, Any] | None = None) -> None:
        self.equal, self.iterators, self.number = equal, [], shards
        pipe = self.joined.case.pipeline(self.executor)
        if self.replicas is None:
            self.shards = pipe.split(shards, equal=equal, state_dict=state)
            return
        found = pipe.split(shards, replicas=self.replicas, equal=equal, state_dict=state)
        self.shards = [replica for of_shard in found for replica in of_shard]

    def begin(self, batch_rows: int) -> bool:
        self.batch_rows = batch_rows
        self.has_ended = not deepcopy(self.joined).step(1)
        if self.has_ended:
            return False

        def begin(shard: Any) -> Iterator[Any]:
            return iter(shard.iter_batches(batch_rows, balance=self.balance))

        self.iterators = self._of_all(self.shards, begin)
        return True

    def step(self) -> None:
        expected = [
            batch for batch in self.expect(self.number * self.batch_rows) for _ in range(self.replicas or 1)
        ]
        found = self._of_all(self.iterators, lambda iterator: next(iterator, None))
        assert [_values(batch) for batch in found] == expected
        if len(self.latest) < self.number * self.batch_rows:
            self.has_ended, self.iterators = True, []

    def expect(self, rows: int) -> list[list[Any]]:
        found = self.joined.step(rows)
        values = [tuple(token for token, _ in sequence) for sequence in found]
        self.latest = [""] * len(values)
        size = self.number, self.batch_rows, self.equal
        if self.balance is None:
            assigned = assign_as_lists(len(values), *size)
        else:
            # the tokens of each document
            measures = [
                [len(list(own)) for _, own in groupby(number for _, number in sequence)] for sequence in found
            ]
            assigned = divide_by_cost(len(values), *size, self.balance, measures)
        return [[values[row] for batch in shard for row in batch] for shard in assigned.batches]

    def save(self) -> dict[str, Any]:
        states = [shard.state_dict() for shard in self.shards]
        assert all(state == states[0] for state in states)
        text = json.dumps(states[0])
        assert len(text) < 1024
        if states[0]["row"] != self.joined.sequences * self.joined.case.seq_len:
            # at the end, whatever no shard gets has been passed
            assert self.equal is True
            assert not any(self.expect(self.number * self.batch_rows))
            self.has_ended = True
        found: dict[str, Any] = json.loads(text)
        return found

    def set_shares(self, shares: Mapping[str, Any]) -> None:
        for shard in self.shards:
            shard.set_shares(shares)
        self.joined.set_shares(shares)
        if self.has_ended or not self.iterators:
            self.iterators, self.has_ended = [], False

    def go_on(self, case: JoinedCase, shards: int, equal: Equal) -> None:
        state = self.save()
        self.close()
        self.joined, self.has_ended = self.joined.resumed(case), False
        self.split(shards, equal, state)


def _values(batch: Any) -> list[tuple[int, ...]]:
    """The sequences of a batch, or of its microbatches."""
    parts = batch if isinstance(batch, list) else [] if batch is None else [batch]
    return [tuple(row) for part in parts for row in take_rows(part)]


@st.composite
def _joined(draw: st.DrawFn) -> JoinedCase:
    case = draw(MIXTURES)
    # no source can be without a token
    sources = tuple(
        source
        if any(tokens_of(x) for x in source.rows(number, 0, sum(source.sizes)))
        else replace(source, sizes=(9, 0, 13))
        for number, source in enumerate(case.sources)
    )
    units: Any = ("steps", "rows", "tokens")
    shares = draw(schedules([NAMES[number] for number in case.members], units))
    return JoinedCase(
        replace(case, sources=sources, shares=shares),
        draw(st.sampled_from([1, 2, 3, 5, 8, 30])),
        draw(st.booleans()),
        draw(st.sampled_from(["rows", "tokens"])),
    )


JOINED = _joined().filter(lambda case: case.delivers)
