"""How `Balance` divides a step of a mixture by law 11: a reference implementation, one step at a time."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from windrow.shuffle.order.balance import Balance
from windrow.shuffle.order.shard_assignment import Equal
from windrow.shuffle.order.step_balance import balance_steps

# the microbatches of each shard's batch
Batches = list[list[list[Any]]]

BALANCES = st.builds(
    Balance,
    st.sampled_from(["x", "flag"]),
    st.sampled_from(["length", "length ** 2"]),
    st.sampled_from(["equal", "free"]),
    st.integers(1, 4),
)


@dataclass(frozen=True)
class MixedStep:
    """A step: the mixture's row at which it begins, and its rows.

    By row, it has the number of its source, the window of that, and the round in which it comes.
    ``batches`` are the places in the step of each shard's rows without a balance, some of them repeated. ``full``: the
    rows that such a step has at most.
    """

    first: int
    values: Sequence[Any]
    sources: Sequence[int]
    windows: Sequence[Hashable]
    rounds: Sequence[int]
    batches: Sequence[Sequence[int]]
    full: int
    equal: Equal
    measure: Callable[[Any], Any]
    # by row, whether two windows hold a part of it
    shared: Sequence[bool] = ()

    def divide(self, balance: Balance) -> Batches:
        """The microbatches of each shard."""
        owners: dict[int, int] = {}
        for shard, places in enumerate(self.batches):
            for place in places:
                # padding repeats places of shards before
                owners.setdefault(place, shard)
        repeated = [
            [place for at, place in enumerate(places) if owners[place] != shard or place in places[:at]]
            for shard, places in enumerate(self.batches)
        ]
        if balance.rows == "equal":
            values = self._exchange(balance, owners)
        else:
            values = list(self.values)
            owners = self._divide_freely(balance, owners)
        found = []
        for shard, copies in enumerate(repeated):
            own = sorted(place for place, owner in owners.items() if owner == shard)
            parts = self._cut(balance, own, values)
            batch = [[values[place] for place in part] for part in parts]
            if copies:
                batch = batch or [[]]
                batch[-1] += [values[place] for place in copies]
            found.append(batch)
        return found

    def _costs(self, balance: Balance, values: Sequence[Any]) -> np.ndarray[Any, Any]:
        found = []
        for value in values:
            measured = self.measure(value)
            segments = measured if isinstance(measured, list) else [measured]
            found.append(sum(balance.costs(np.array(segments, np.float32)).tolist()))
        return np.array(found, np.float64)

    def _is_shared(self, place: int) -> bool:
        return bool(self.shared) and self.shared[place]

    def _group(self, places: Sequence[int]) -> list[list[int]]:
        """The rows of each window and round; one that two windows hold is alone."""
        groups: dict[Any, list[int]] = {}
        for place in places:
            alone = place if self._is_shared(place) else -1
            key = self.rounds[place], self.sources[place], alone, self.windows[place]
            groups.setdefault(key, []).append(place)
        return list(groups.values())

    def _spread(self, places: Sequence[int]) -> int:
        """By how many bins those of a group are turned."""
        return _mix(self.first + places[0])

    def _order(self, places: Sequence[int]) -> list[int]:
        """The shards in the order in which they get rows of a group."""
        shards = len(self.batches)
        return sorted(range(shards), key=lambda shard: _mix((self.first + places[0]) * shards + shard))

    def _exchange(self, balance: Balance, owners: dict[int, int]) -> list[Any]:
        """The rows of a window, in a round, change places."""
        found = list(self.values)
        shards = len(self.batches)
        in_turn = sorted(owners, key=lambda place: (self.rounds[place], self.sources[place], place))
        for places in self._group(in_turn):
            order = self._order(places)
            rows, of_shard = [self.values[place] for place in places], [owners[place] for place in places]
            room = np.bincount(of_shard, minlength=shards).astype(np.int64)
            to = balance_steps(
                self._costs(balance, rows), np.array([0, len(rows)]), shards, room[order]
            ).tolist()
            for shard in range(shards):
                own = [row for row, owner in zip(rows, to, strict=True) if order[owner] == shard]
                targets = [place for place, owner in zip(places, of_shard, strict=True) if owner == shard]
                for place, row in zip(targets, own, strict=True):
                    found[place] = row
        return found

    def _divide_freely(self, balance: Balance, owners: dict[int, int]) -> dict[int, int]:
        """Any number of rows on each shard; groups begin where the ones before end."""
        shards = len(self.batches)
        if len(self.values) < self.full and (self.equal == "pad" or len(self.values) < shards):
            return owners
        in_turn = sorted(owners, key=lambda place: (self.rounds[place], self.sources[place], place))
        found = {}
        for places in self._group(in_turn):
            costs = self._costs(balance, [self.values[place] for place in places])
            to = balance_steps(costs, np.array([0, len(places)]), shards, None).tolist()
            before, turn, bins = in_turn.index(places[0]), self._spread(places), min(shards, len(places))
            found.update(
                {
                    place: ((each + turn) % bins + before) % shards
                    for place, each in zip(places, to, strict=True)
                }
            )
        return found

    def _cut(self, balance: Balance, own: list[int], values: Sequence[Any]) -> list[list[int]]:
        """The microbatches of a shard's rows; those of each round are divided by themselves."""
        shards = len(self.batches)
        parts: list[list[int]] = [[] for _ in range(balance.microbatches)]
        for number in sorted({self.rounds[place] for place in own}):
            places = [place for place in own if self.rounds[place] == number]
            before = own.index(places[0])
            if balance.rows == "free":
                before = self.rounds.index(number) // shards
            costs = self._costs(balance, [values[place] for place in places])
            to = balance_steps(costs, np.array([0, len(places)]), balance.microbatches, None).tolist()
            for place, part in zip(places, to, strict=True):
                parts[(part + before) % balance.microbatches].append(place)
        return [part for part in parts if part]


def _mix(word: int) -> int:
    """The finalizer of splitmix64, and of that the upper 63 bits."""
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    word = (word ^ word >> 27) * 0x94D049BB133111EB % 2**64
    return (word ^ word >> 31) >> 1
