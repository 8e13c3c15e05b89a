"""A leg of a mixture whose rows have all been measured before: the order of its rows, its steps, and its rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from windrow.core.cached_properties import cached_property
from windrow.core.errors import PlanError
from windrow.pipeline.plan.mixed_source import MixedSource, NeededWindow, SourceWindow
from windrow.pipeline.plan.mixture import Mixture
from windrow.pipeline.plan.mixture_leg import MixtureLeg
from windrow.pipeline.plan.window_places import WindowPlaces, WindowPlan, find_list_limit
from windrow.shuffle.order.balance import Balance
from windrow.shuffle.order.numbered_rounds import NumberedRound, lay_out_window, number_round
from windrow.shuffle.order.round_runs import RoundRuns, ScatteredOrder, scatter_window
from windrow.shuffle.order.shard_assignment import ShardAssignment
from windrow.shuffle.order.step_cuts import StepCuts
from windrow.shuffle.order.step_rows import StepRows, WindowCuts, divide_cut_rows, divide_rows

# of a leg whose steps end by their tokens: each takes at least 20 µs
_MOST_STEPS = 4096

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


def lengths_of_blocks(source: MixedSource) -> list[Floats]:
    """What the rows of each block of a source measure."""
    assert source.lengths is not None, "rows have been measured"
    return np.split(source.lengths, np.cumsum(source.rows)[:-1])


def expect_rows(mixture: Mixture, assignment: ShardAssignment) -> int:
    """About how many rows have as many steps as a leg may have, if these end by their tokens."""
    budget, sources = assignment.cost_balance.budget, mixture.sources
    mean = sum(each.total_length for each in sources) / max(1, sum(each.pass_rows for each in sources))
    assert budget is not None, "steps end by their tokens"
    return max(1, int(_MOST_STEPS * assignment.shards * budget.tokens / min(max(1.0, mean), budget.tokens)))


def order_of_window(leg: MixtureLeg, needed: NeededWindow) -> ScatteredOrder:
    """Where the rows of a source's window come in the mixture, without groups by length."""
    source, window = leg.mixture.sources[needed.source], needed.window
    rows = int(source.rows[window.blocks - source.first_block].sum())
    key = source.window_key(window)
    return scatter_window(key, rows, window.start, needed.source, leg.stretches_of(needed))


class MeasuredLeg:
    """A leg, and what its rows measure."""

    def __init__(self, leg: MixtureLeg) -> None:
        self.leg = leg
        self._cuts: dict[ShardAssignment, StepCuts] = {}
        self._rounds: dict[tuple[int, ShardAssignment, tuple[tuple[int, ...], ...], int], NumberedRound] = {}

    def up_to(self, leg: MixtureLeg) -> MeasuredLeg:
        """The same for a leg that ends where one of its steps does."""
        found = MeasuredLeg(leg)
        found._cuts = self._cuts
        # cached properties, computed before
        found.__dict__["unsorted_lengths"] = self.unsorted_lengths[: leg.stop - leg.row]
        return found

    # --- the order of rows

    @cached_property
    def unsorted_lengths(self) -> Floats:
        """(rows,) what the leg's rows measure, in their order without groups."""
        leg = self.leg
        count = leg.stop - leg.row
        found = np.zeros(count, np.float32)
        for needed in leg.windows:
            source = leg.mixture.sources[needed.source]
            order = order_of_window(leg, needed)
            rows = order.epoch_rows(0, order.rows) - leg.row
            inside = (rows >= 0) & (rows < count)
            found[rows[inside]] = _select(source, needed.window)[inside]
        return found

    @cached_property
    def _places(self) -> Ints | None:
        """(rows,) where each row comes, counted from the leg's first; None: where it is."""
        leg = self.leg
        if not leg.order.is_grouped:
            return None
        found = np.arange(leg.stop - leg.row, dtype=np.int64)
        spans = leg.order.spans(leg.row)
        stops = [*(each.first_row for each in spans[1:]), leg.stop]
        for span, stop in zip(spans, stops, strict=True):
            first = span.first_row - leg.row
            lengths = self.unsorted_lengths[first : max(first, stop - leg.row)]
            if span.steps and len(lengths):
                found[first : first + len(lengths)] = first + span.arrange(lengths, 0)
        return found

    @cached_property
    def lengths(self) -> Floats:
        """(rows,) what the leg's rows measure, in the order in which they come."""
        places = self._places
        if places is None:
            return self.unsorted_lengths
        found = np.empty_like(self.unsorted_lengths)
        found[places] = self.unsorted_lengths
        return found

    def find_places(self, rows: Ints) -> Ints:
        """(rows,) where some of the mixture's rows come; -1 for those that are not of the leg."""
        leg = self.leg
        inside = (rows >= leg.row) & (rows < leg.stop)
        if self._places is None:
            return np.where(inside, rows, -1)
        return np.where(inside, leg.row + self._places[np.where(inside, rows - leg.row, 0)], -1)

    # --- steps

    def cut(self, assignment: ShardAssignment) -> StepCuts:
        """Where the steps of the leg begin, if they end by their tokens."""
        assignment = replace(assignment, start_row=self.leg.row)
        found = self._cuts.get(assignment)
        if found is None:
            found = self._cuts[assignment] = StepCuts(assignment, 0)
            found.add(self.lengths, is_last=self.leg.is_last, most_steps=_MOST_STEPS)
        return found

    def check_budget(self, balance: Balance) -> None:
        """Raise PlanError if no step can ever be made, since all rows behind the leg have too many tokens."""
        leg, budget = self.leg, balance.budget
        assert budget is not None, "steps end by their tokens"
        shared = np.sum([weights for _, stop, weights in leg.phases() if stop > leg.stop], axis=0)
        totals = [source.total_rows for source in leg.mixture.sources]
        sources = [
            source
            for source, share, total, count in zip(
                leg.mixture.sources, shared, totals, leg.counts_at(leg.stop), strict=True
            )
            # one that comes behind the leg
            if share and (total is None or total > count)
        ]
        lengths = [source.lengths for source in sources if source.lengths is not None]
        if not any(budget.count(each, balance.column).any() for each in lengths):
            names = ", ".join(repr(source.name) for source in sources)
            raise PlanError(
                f"token_budget={budget.tokens:,} leaves out all rows of the sources {names}: each of them is longer"
            )

    def _divide(self, number: int, assignment: ShardAssignment) -> StepRows:
        """Divide the rows of a round among shards."""
        leg = self.leg
        first, stop = window = leg.round_span(number)
        total = leg.stop
        if assignment.ends_by_tokens:
            cuts = self.cut(assignment)
            starts = np.array(cuts.starts, np.int64)
            begin = max(0, int(np.searchsorted(starts, first, side="right")) - 1)
            end = max(begin, int(np.searchsorted(starts, stop)))
            of_round = WindowCuts(starts[begin : end + 1], end + 1 >= len(starts))
            low = int(of_round.starts[0])
            measures = self.lengths[low - leg.row : max(stop, int(of_round.starts[-1])) - leg.row]
            return divide_cut_rows(
                assignment, window=window, total=total, low=low, measures=measures, cuts=of_round
            )
        low, high = leg.whole_steps(assignment, first, stop)
        lengths = self.lengths[low - leg.row : high - leg.row]
        costs = assignment.cost_balance.costs(lengths)
        return divide_rows(assignment, window=window, total=total, low=low, costs=costs, lengths=lengths)

    def _round(
        self, number: int, assignment: ShardAssignment, destinations: Sequence[tuple[int, ...]], run_rows: int
    ) -> NumberedRound:
        key = number, assignment, tuple(destinations), run_rows
        found = self._rounds.get(key)
        if found is None:
            divided = self._divide(number, assignment)
            first, _ = self.leg.round_span(number)
            found = self._rounds[key] = number_round(divided, first, destinations, run_rows)
        return found

    # --- windows

    def place(
        self, needed: NeededWindow, plan: WindowPlan, before: Ints, layouts: Sequence[RoundRuns]
    ) -> WindowPlaces:
        """Where the rows of a source's window go, which has ``before`` rows before each of its blocks.

        ``layouts`` are those of its rounds without costs.
        """
        layout, source = layouts[0], self.leg.mixture.sources[needed.source]
        order = order_of_window(self.leg, needed)
        destinations = [each.shards for each in layouts]
        assignment, run_rows = layout.round.assignment, layout.round.run_rows
        rounds = [
            self._round(number, assignment, destinations, run_rows)
            for number in range(layout.first_round, layout.stop_round)
        ]
        rows = self.find_places(order.epoch_rows(0, order.rows))
        numbered, keys = lay_out_window(layouts, rounds, rows)
        lengths = _select(source, needed.window)
        return WindowPlaces(
            plan,
            order,
            numbered,
            before,
            given_rows=tuple(np.split(keys, before[1:-1])),
            list_limit=find_list_limit(assignment.cost_balance, [lengths]),
            rounds=dict(zip(range(layout.first_round, layout.stop_round), rounds, strict=True)),
        )


def _select(source: MixedSource, window: SourceWindow) -> Floats:
    """What the stored rows of a window measure."""
    assert source.lengths is not None, "rows have been measured"
    return source.select(source.lengths, window)
