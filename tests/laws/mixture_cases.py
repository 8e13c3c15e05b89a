"""Random mixtures, the rows that they must deliver by a reference implementation, and a reader of their shards."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from tests.laws.cases import CUTS
from tests.laws.mixed_sources import SourceCase, measure_documents
from tests.laws.mixture_balance import MixedStep
from tests.laws.reading import take_microbatches
from tests.laws.reference import Assigned, assign_as_lists
from windrow import Shares, mixture
from windrow.dataset.dataset import DatasetPipeline
from windrow.pipeline.executors.base import Executor
from windrow.pipeline.plan.mixture import WhenExhausted
from windrow.pipeline.plan.shares import Unit, make_shares
from windrow.pipeline.shard.shard import Shard
from windrow.shuffle.order.balance import Balance
from windrow.shuffle.order.epoch_plan import WindowCut
from windrow.shuffle.order.keys import derive_key
from windrow.shuffle.order.shard_assignment import Equal
from windrow.shuffle.order.share_sequence import share_sequence

__all__ = ["MixedCase", "MixedRows", "MixtureReading", "SourceCase"]

NAMES = ("c", "a", "é", "b", "e", "d")
ENDLESS = 2**40


@dataclass(frozen=True)
class MixedCase:
    """A mixture; ``members`` are the numbers of its sources, each of which has a name."""

    sources: tuple[SourceCase, ...]
    members: tuple[int, ...]
    shares: Shares
    when_exhausted: WhenExhausted = "stop"
    seed: int = 7

    @property
    def names(self) -> list[str]:
        return [NAMES[number] for number in self.members]

    def pipeline(self, executor: str | Executor, length_column: str | None = None) -> DatasetPipeline:
        sources = {NAMES[number]: self.sources[number].pipeline(number) for number in self.members}
        options: Any = {"when_exhausted": self.when_exhausted, "length_column": length_column}
        pipe = mixture(sources, self.shares, seed=self.seed, **options)
        return pipe.options(executor=executor, progress=False)

    @property
    def packed(self) -> int:
        return self.sources[0].packed

    def limit(self, name: str) -> int:
        number = NAMES.index(name)
        source = self.sources[number]
        if source.passes is None or self.when_exhausted == "repeat":
            return ENDLESS
        return source.passes * source.pass_rows(number)


@dataclass
class MixedRows:
    """The mixture's rows by the laws, one at a time.

    Shares hold since row ``start``; ``counts`` are rows of each source, and ``steps`` the steps before.
    """

    case: MixedCase
    row: int = 0
    steps: int = 0
    start: int = 0
    weights: dict[str, int] | None = None  # those that hold now, of all sources
    set_weights: dict[str, int] | None = None
    counts: dict[str, int] | None = None
    began: dict[str, int] | None = None
    gone: frozenset[str] = frozenset()

    def step(self, rows: int) -> list[str]:
        """The sources of the next rows; fewer if the mixture ends."""
        found = list[str]()
        self._follow_schedule("steps", self.steps)
        for _ in range(rows):
            self._follow_schedule("rows", self.row)
            source = self._next_source()
            if source is None:
                self.steps += bool(found)
                return found
            found.append(source)
            assert self.counts is not None
            self.counts[source] += 1
            self.row += 1
            self._check_shares()
        self.steps += 1
        return found

    def _follow_schedule(self, unit: str, place: int) -> None:
        shares, names = self.case.shares, self.case.names
        self.counts = self.counts or dict.fromkeys(names, 0)
        counted = "rows" if shares.unit == "tokens" else shares.unit
        if self.set_weights is not None or (counted != unit and self.weights is not None):
            return
        # a change within a sequence takes effect at the next one
        length = self.case.packed if shares.unit == "tokens" else 1
        place = place * length if counted == unit else 0
        phase = shares.phase_at(place)
        weights = dict(zip(names, shares.phases[phase].weights(names), strict=True))
        if self.weights is None or (place and phase != shares.phase_at(place - length)):
            self.begin(weights)

    def begin(self, weights: Mapping[str, int], gone: frozenset[str] = frozenset()) -> None:
        """Shares count from here on."""
        self.counts = self.counts or dict.fromkeys(self.case.names, 0)
        self.weights, self.start, self.began, self.gone = dict(weights), self.row, dict(self.counts), gone

    def _next_source(self) -> str | None:
        assert self.weights is not None
        assert self.counts is not None
        case = self.case
        while True:
            left = {
                name: 0 if self.counts[name] >= case.limit(name) else weight
                for name, weight in self.weights.items()
            }
            at_start = self.row == self.start
            if at_start and left != self.weights and case.when_exhausted != "drop":
                return None
            if at_start:
                self.gone = frozenset(name for name in left if left[name] != self.weights[name])
            holding = [0 if name in self.gone else self.weights[name] for name in case.names]
            if not any(holding):
                return None
            key = derive_key(case.seed, "shares", self.start, 0)
            sequence = share_sequence(tuple(holding), key)
            source = case.names[int(sequence.sources[(self.row - self.start) % sequence.period])]
            if self.counts[source] < case.limit(source):
                return source
            if case.when_exhausted != "drop" or not any(left.values()):
                return None  # nothing changes where the mixture ends, whether or not another row is asked for
            self.begin(self.weights)

    def _check_shares(self) -> None:
        """Each source has less than a row more or less than its share since shares last changed."""
        assert self.weights is not None
        assert self.counts is not None
        assert self.began is not None
        holding = {name: weight for name, weight in self.weights.items() if name not in self.gone}
        total, rows = sum(holding.values()), self.row - self.start
        for name, count in self.counts.items():
            done = count - self.began[name]
            assert abs(done * total - holding.get(name, 0) * rows) < total, (name, done, rows)

    def resumed(self, case: MixedCase) -> MixedRows:
        """The rows of another mixture that goes on here."""
        counts = {name: (self.counts or {}).get(name, 0) for name in case.names}
        found = MixedRows(case, self.row, self.steps, counts=counts)
        then, schedules = self.case, (self.case.shares, case.shares)
        is_same = case.names == then.names and schedules[0] == schedules[1]
        is_same = is_same and case.when_exhausted == then.when_exhausted
        found.set_weights = self.set_weights if is_same else None
        place = self.steps if case.shares.unit == "steps" else self.row
        place *= case.packed if case.shares.unit == "tokens" else 1
        phase = case.shares.phases[case.shares.phase_at(place)]
        now = found.set_weights or dict(zip(case.names, phase.weights(case.names), strict=True))
        found.begin(now)
        # a source that had left and has rows again comes in as with a share
        gone = self.gone & set(case.names)
        stays_out = all(counts[name] >= case.limit(name) for name in gone)
        # and where sources are not left out, one without rows ends the mixture here
        stays_out = stays_out and (case.when_exhausted == "drop" or not gone)
        # one that has begun passes which it does not have any more has no rows left from here on
        is_over = any(
            now[name] and name not in self.gone and counts[name] > case.limit(name) for name in case.names
        )
        if case.names == then.names and now == self.weights and stays_out and not is_over:
            found.start, found.began, found.gone = self.start, self.began, self.gone
        return found

    def set_shares(self, shares: Mapping[str, Any]) -> None:
        names = self.case.names
        self.set_weights = dict(zip(names, make_shares(shares).phases[0].weights(names), strict=True))
        self.begin(self.set_weights)


class MixtureReading:
    """Shards of a mixture, or replicas of each, read step by step, and compared with the reference."""

    def __init__(
        self,
        case: MixedCase,
        executor: str | Executor,
        balance: Balance | None = None,
        replicas: int | None = None,
    ) -> None:
        self.case, self.executor, self.balance, self.replicas = case, executor, balance, replicas
        self.model = MixedRows(case)
        self.shards: list[Shard] = []
        self.iterators: list[Iterator[Any]] = []
        self.has_ended = False
        self.batch_rows = 1

    def split(self, shards: int, equal: Equal = False, state: dict[str, Any] | None = None) -> None:
        self.equal, self.iterators = equal, []
        self.number, pipe = shards, self.case.pipeline(self.executor)
        if self.replicas is None:
            self.shards = pipe.split(shards, equal=equal, state_dict=state)
            return
        found = pipe.split(shards, replicas=self.replicas, equal=equal, state_dict=state)
        self.shards = [replica for of_shard in found for replica in of_shard]

    def read(self, steps: int, batch_rows: int) -> None:
        """Read some steps of all shards; the iterators go on if the batch size is the same."""
        if not self.iterators and not self.begin(batch_rows):
            return
        for _ in range(steps):
            if self.has_ended:
                return
            self.step()

    def begin(self, batch_rows: int) -> bool:
        self.batch_rows = batch_rows
        self.has_ended = not replace_rows(self.model).step(1)
        if self.has_ended:
            return False

        def begin(shard: Shard) -> Iterator[Any]:
            return iter(shard.iter_batches(batch_rows, balance=self.balance))

        self.iterators = self._of_all(self.shards, begin)
        return True

    def _of_all(self, items: Sequence[Any], call: Callable[[Any], Any]) -> list[Any]:
        """A call for each; with replicas at once, since one that others wait for must not wait for them."""
        if self.replicas is None:
            return [call(item) for item in items]
        with ThreadPoolExecutor(len(items)) as pool:
            return list(pool.map(call, items))

    def step(self) -> None:
        n, B = self.number, self.batch_rows
        expected = [batch for batch in self.expect(n * B) for _ in range(self.replicas or 1)]
        found = self._of_all(self.iterators, lambda iterator: next(iterator, None))
        batches = [take_microbatches(batch) for batch in found]
        assert batches == expected
        if len(self.latest) < n * B:
            self.has_ended, self.iterators = True, []

    def expect(self, rows: int) -> list[list[Any]]:
        """The batches of the next step; with microbatches, lists of these."""
        n, B = self.number, self.batch_rows
        before, first = dict(self.model.counts or dict.fromkeys(self.case.names, 0)), self.model.row
        self.latest = self.model.step(rows)
        order = {}
        for number in self.case.members:
            name = NAMES[number]
            count = self.latest.count(name)
            order[name] = iter(self.case.sources[number].rows(number, before[name], count))
        values = [next(order[name]) for name in self.latest]
        assigned = assign_as_lists(len(values), n, B, self.equal)
        if self.balance is not None:
            divided = self._divide(values, before, first, assigned)
            if self.balance.microbatches > 1:
                return divided
            return [[row for part in batch for row in part] for batch in divided]
        return [[values[row] for batch in shard for row in batch] for shard in assigned.batches]

    def _divide(
        self, values: list[Any], before: Mapping[str, int], first: int, assigned: Assigned
    ) -> list[list[list[Any]]]:
        """The microbatches of each shard."""
        assert self.balance is not None
        mixture = self.shards[0]._program.job.mixture
        assert mixture is not None
        windows = {
            name: iter(self.case.sources[NAMES.index(name)].windows(NAMES.index(name), count, len(values)))
            for name, count in before.items()
            if name in self.latest
        }
        column, of_rows = self.balance.column, [next(windows[name]) for name in self.latest]

        def measure(row: Any) -> Any:
            if self.case.packed:
                return measure_documents(row)
            return row % 2 if column == "flag" else row

        step = MixedStep(
            first,
            values,
            [self.case.names.index(name) for name in self.latest],
            of_rows,
            [(first + place) // mixture.round_rows for place in range(len(values))],
            [[place for batch in batches for place in batch] for batches in assigned.batches],
            self.number * self.batch_rows,
            self.equal,
            measure,
            [len(held) > 2 for held in of_rows],
        )
        return step.divide(self.balance)

    def save(self) -> dict[str, Any]:
        states = [shard.state_dict() for shard in self.shards]
        assert all(state == states[0] for state in states)
        text = json.dumps(states[0])
        assert len(text) < 1024
        if self.equal is True:
            self._leave_out_last(states[0]["row"])
        assert states[0]["row"] == self.model.row * max(1, self.case.packed)
        return json.loads(text)

    def _leave_out_last(self, row: int) -> None:
        """Rows at the end that are fewer than shards are left out with the step before them."""
        rest = replace_rows(self.model)
        if len(rest.step(self.number)) < self.number and row == rest.row * max(1, self.case.packed):
            self.model = rest

    def set_shares(self, shares: Mapping[str, Any]) -> None:
        for shard in self.shards:
            shard.set_shares(shares)
        self.model.set_shares(shares)
        if self.has_ended or not self.iterators:
            self.iterators, self.has_ended = [], False

    def leave(self) -> None:
        """Drop the iterators: the next ones go on where they were."""
        self.iterators = []

    def resume(self, case: MixedCase, shards: int, equal: Equal) -> None:
        state = self.save()
        self.close()
        self.case, self.model, self.has_ended = case, self.model.resumed(case), False
        self.split(shards, equal, state)

    def close(self) -> None:
        self.leave()
        for shard in self.shards:
            shard.close()


def replace_rows(model: MixedRows) -> MixedRows:
    """A copy, of which rows can be taken."""
    counts = None if model.counts is None else dict(model.counts)
    return replace(model, counts=counts)


# --- drawn mixtures

NUMBERS = st.sampled_from([0, 1, 1, 1, 2, 3, 5, 0.1, 0.25, 17])
SOURCES = st.builds(
    SourceCase,
    sizes=st.one_of(
        st.lists(st.integers(0, 12), min_size=1, max_size=6).filter(any).map(tuple),
        st.just((1,)),
        st.just((40, 3, 25)),
    ),
    cut=st.one_of(CUTS, st.just(WindowCut(blocks_per_window=1))),
    seed=st.one_of(st.integers(0, 2**64), st.none()),
    passes=st.sampled_from([None, None, 1, 2, 5]),
    shuffles_blocks=st.sampled_from([False, False, True]),
)


def draw_shares(draw: st.DrawFn, names: Sequence[str]) -> dict[str, float]:
    """Shares of some sources, which are not all 0."""
    found = {name: draw(NUMBERS) for name in names}
    found[draw(st.sampled_from(names))] = draw(st.sampled_from([1, 2, 0.5]))
    return found


@st.composite
def schedules(draw: st.DrawFn, names: Sequence[str], units: Sequence[Unit] = ("steps", "rows")) -> Shares:
    unit = draw(st.sampled_from(units))
    starts = draw(st.sets(st.integers(1, 12 if unit == "steps" else 150), max_size=3))
    return Shares.steps({start: draw_shares(draw, names) for start in [0, *starts]}, unit=unit)


@st.composite
def mixtures(draw: st.DrawFn, lengths: Sequence[int] = (0,)) -> MixedCase:
    sources = tuple(draw(st.lists(SOURCES, min_size=1, max_size=6)))
    units: tuple[Unit, ...] = ("steps", "rows")
    if packed := draw(st.sampled_from(lengths)):
        units = ("steps", "rows", "tokens")
        found = (replace(source, packed=packed, has_eos=draw(st.booleans())) for source in sources)
        # no source can be without a sequence
        sources = tuple(
            source if source.pass_rows(number) else replace(source, sizes=(9, 0, 13))
            for number, source in enumerate(found)
        )
    members = tuple(draw(st.permutations(range(len(sources))))[: draw(st.integers(1, len(sources)))])
    shares = draw(schedules([NAMES[number] for number in members], units))
    when: Any = draw(st.sampled_from(["stop", "repeat", "drop"]))
    return MixedCase(sources, members, shares, when, draw(st.integers(-3, 2**64)))


MIXTURES, PACKED = mixtures(), mixtures((1, 2, 3, 5, 8))
