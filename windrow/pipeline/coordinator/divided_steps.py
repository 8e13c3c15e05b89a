"""The rounds of a mixture whose steps are divided by cost, each put together once all of its windows are placed."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence

from windrow.pipeline.coordinator.scheduling.shard_tracker import Key
from windrow.pipeline.plan.window_places import WindowPlaces
from windrow.shuffle.order.divided_rounds import DividedRounds
from windrow.shuffle.order.merged_rounds import MergedRound, RoundParts, merge_round

# those that shards fetch at the same time, and those before, which steps go on from
_KEPT_ROUNDS = 8

Note = Callable[[int, int, Sequence[float], tuple[float, float]], None]


class DividedSteps:
    """The latest rounds; ``note`` is told how uneven the steps are that end in each."""

    def __init__(self, note: Note) -> None:
        self._note = note
        # with the windows that each was made of, which are not kept for that
        self._merged: OrderedDict[Key, tuple[list[weakref.ref[WindowPlaces]], MergedRound]] = OrderedDict()

    def merge(self, key: Key, windows: Sequence[WindowPlaces]) -> MergedRound:
        """A round, given by epoch and number, whose windows are all placed."""
        known = self._merged.get(key)
        if known is not None and [each() for each in known[0]] == list(windows):
            return known[1]
        epoch, number = key
        layouts = [
            next(each for each in window.layouts if isinstance(each, DividedRounds)) for window in windows
        ]
        found = merge_round(number, layouts, self._begun_before(key, layouts[0]))
        self._merged[key] = list(map(weakref.ref, windows)), found
        self._merged.move_to_end(key)
        if len(self._merged) > _KEPT_ROUNDS:
            self._merged.popitem(last=False)
        ended = found.ended
        self._note(epoch, number, ended.imbalances, (ended.length, ended.padded_length))
        return found

    def _begun_before(self, key: Key, layout: DividedRounds) -> RoundParts | None:
        """What the round before has of the step in which this one begins."""
        known = self._merged.get((key[0], key[1] - 1))
        if known is None or known[1].layout.assignment != layout.assignment:
            return None
        found = known[1].open_parts
        return found if len(found.rows) else None
