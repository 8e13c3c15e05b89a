"""Where the tokens of a source's window go in a mixture whose sequences join documents of all sources."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from windrow.pipeline.plan.joined_leg import JoinedLeg
from windrow.pipeline.plan.mixed_source import NeededWindow
from windrow.pipeline.plan.window_places import WindowPlaces, WindowPlan, find_documents
from windrow.pipeline.tasks.task import Documents
from windrow.shuffle.order.balance import Balance
from windrow.shuffle.order.numbered_rounds import NumberedRound, lay_out_window, number_round
from windrow.shuffle.order.round_runs import RoundRuns
from windrow.shuffle.order.shard_assignment import ShardAssignment
from windrow.shuffle.order.step_sequences import divide_sequences
from windrow.shuffle.order.window_order import WindowOrder, cut_documents

Ints = NDArray[np.int64]


class JoinedPlaces:
    """Where the documents of a leg go, of which all are known."""

    def __init__(self, leg: JoinedLeg) -> None:
        self.leg = leg
        self._costs: dict[Balance, NDArray[np.float64]] = {}
        self._rounds: dict[tuple[int, ShardAssignment, tuple[tuple[int, ...], ...], int], NumberedRound] = {}

    def place(
        self,
        needed: NeededWindow,
        plan: WindowPlan,
        before: Ints,
        lengths: Sequence[NDArray[np.int32] | None],
        layouts: tuple[RoundRuns, ...],
    ) -> WindowPlaces:
        """Where the documents of a source's window go, which has ``before`` tokens before each of its blocks.

        ``lengths`` hold the tokens of each document of every block of the mixture. ``layouts`` are those of the
        window's rounds without costs.
        """
        counted = find_documents(plan, lengths)
        of_window = np.concatenate([np.zeros(0, np.int32), *counted])
        starts = self.leg.place_documents(needed, of_window)
        borders = np.cumsum([len(each) for each in counted])[:-1]
        documents = tuple(map(Documents, np.split(starts, borders), counted))
        # places come from the documents' starts alone
        order = WindowOrder(len(of_window), needed.window.start, None)
        if layouts[0].round.assignment.balance is None:
            return WindowPlaces(plan, order, layouts, before, documents)
        return self._divide(WindowPlaces(plan, order, layouts, before, documents), layouts)

    # --- with `Balance`

    def _divide(self, places: WindowPlaces, layouts: tuple[RoundRuns, ...]) -> WindowPlaces:
        """The same with sequences divided by cost."""
        layout, seq_len = layouts[0], self.leg.seq_len
        assignment, run_rows = layout.round.assignment, layout.round.run_rows
        numbers = range(layout.first_round, layout.stop_round)
        destinations = [each.shards for each in layouts]
        rounds = [self._round(number, assignment, destinations, run_rows) for number in numbers]
        assert places.documents is not None, "documents have places"
        pieces = [cut_documents(each.starts, each.lengths, seq_len) for each in places.documents]
        touched = np.concatenate([np.zeros(0, np.int64), *(sequences for _, _, sequences in pieces)])
        sequences, at = np.unique(touched, return_inverse=True)
        is_here = (sequences >= self.leg.row) & (sequences < self.leg.stop)
        numbered, keys = lay_out_window(layouts, rounds, np.where(is_here, sequences, -1))
        of_pieces = keys[at]
        within = np.concatenate([np.zeros(0, np.int64), *(rows % seq_len for rows, _, _ in pieces)])
        of_pieces = np.where(of_pieces < 0, of_pieces, of_pieces + within)
        by_block = np.split(of_pieces, np.cumsum([len(rows) for rows, _, _ in pieces])[:-1])
        documents = tuple(
            replace(each, numbers=own) for each, own in zip(places.documents, by_block, strict=True)
        )
        return replace(
            places,
            layouts=numbered,
            documents=documents,
            rounds=dict(zip(numbers, rounds, strict=True)),
        )

    def _find_costs(self, balance: Balance) -> NDArray[np.float64]:
        """(sequences,) what each sequence of the leg costs: the sum over the pieces of documents in it."""
        found = self._costs.get(balance)
        if found is None:
            leg, documents = self.leg, self.leg.order_of_documents
            _, counts, sequences = cut_documents(documents.starts, documents.lengths, leg.seq_len)
            is_here = (sequences >= leg.row) & (sequences < leg.stop)
            costs = balance.costs(counts[is_here])
            summed = np.bincount(sequences[is_here] - leg.row, costs, minlength=leg.stop - leg.row)
            found = self._costs[balance] = summed.astype(np.float64)
        return found

    def _round(
        self, number: int, assignment: ShardAssignment, destinations: Sequence[tuple[int, ...]], run_rows: int
    ) -> NumberedRound:
        key = number, assignment, tuple(destinations), run_rows
        found = self._rounds.get(key)
        if found is None:
            leg = self.leg
            first, stop = leg.round_span(number)
            low, high = leg.whole_steps(assignment.of_sequences, first, stop)
            divided = divide_sequences(
                assignment,
                window=(first * leg.seq_len, stop * leg.seq_len),
                total=leg.stop * leg.seq_len,
                low=low,
                costs=self._find_costs(assignment.cost_balance)[low - leg.row : high - leg.row],
            )
            found = self._rounds[key] = number_round(divided, first, destinations, run_rows)
        return found
