"""What a host knows of each replica: where it is, whether it is there, and whether it reads as the others do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from windrow.core.errors import PlanError, StateError, WindrowError
from windrow.pipeline.coordinator.scheduling.shard_tracker import Key
from windrow.pipeline.delivery.wanted import Wanted
from windrow.pipeline.plan.cursor import Cursor, Place
from windrow.shuffle.order.batching import Batching
from windrow.shuffle.order.shard_assignment import ShardAssignment


@dataclass(frozen=True)
class Reader:
    """A process that reads for a replica: the ``number``-th one; a later one takes the place of it."""

    replica: int
    number: int


@dataclass(frozen=True)
class Opening:
    """The epoch that a replica has opened last."""

    cursor: Cursor
    batching: Batching
    wanted: Wanted

    def fits(self, assignment: ShardAssignment) -> bool:
        """Whether rows that are assigned like this are what the replica asks for."""
        own = assignment.from_row(self.cursor.row, self.cursor.groups)
        return self.batching == assignment.batching and own.groups == assignment.groups


@dataclass
class ReplicaState:
    """One of those that get the shard."""

    name: str
    readers: int = 0
    opening: Opening | None = None
    # whether it still waits for the others there, so that it reads no later epoch than the one before
    is_opening: bool = False
    # everything before it is not needed any more; None: not known, so that everything is
    place: Place | None = None
    # runs that it has got, since its last opening
    taken: set[tuple[Key, int, int]] = field(default_factory=set)
    heard: float = 0.0
    is_paused: bool = False
    is_connected: bool = False
    is_closed: bool = False
    # whether it reads on another node, from a host there
    is_elsewhere: bool = False
    waits_for_others: bool = False

    @property
    def is_absent(self) -> bool:
        """Whether the host need not wait for it."""
        return self.is_closed or self.is_elsewhere

    def begin(self, now: float) -> int:
        """Note that a process starts to read for it; returns the process's number."""
        self.readers += 1
        self.is_connected, self.heard = True, now
        self.is_closed = self.is_elsewhere = self.is_paused = False
        self.forget()
        return self.readers

    def enter(self, opening: Opening, *, stays_valid: bool) -> None:
        """Note that it opens an epoch; whether what it has taken of it, and said of that before, stays valid."""
        self.opening, begun = opening, Place(opening.cursor.epoch, opening.cursor.window)
        if stays_valid and self.place is not None:
            self.place = max(self.place, begun)
        else:
            self.place = begun
            self.taken.clear()

    def forget(self) -> None:
        """Note that its process is gone: the next one may start anywhere."""
        self.opening = self.place = None
        self.is_opening = False
        self.taken.clear()
        self.waits_for_others = False

    def needs(self, key: Key, name: tuple[int, int]) -> bool:
        """Whether it needs a run of a window, given as slice and index."""
        if self.is_absent or (key, *name) in self.taken:
            return False
        return self.place is None or self.place <= Place(*key, name[0])

    def has_left(self, place: Place) -> bool:
        """Whether it needs nothing before a place."""
        is_later = self.opening is not None and self.opening.cursor.epoch > place.epoch
        return is_later or (self.place is not None and self.place >= place)


def find_disagreement(
    states: Sequence[ReplicaState], replica: int, opening: Opening, shard: int
) -> WindrowError | None:
    """The error for all replicas if one reads otherwise than the others."""
    who = f"replica {states[replica].name} of shard {shard}"
    epoch = opening.cursor.epoch
    for number, other in enumerate(states):
        theirs = other.opening
        if number == replica or theirs is None or other.is_absent:
            continue
        ahead = theirs.cursor.epoch - epoch
        if not -1 <= ahead <= 1 + other.is_opening:
            return StateError(
                f"{who} opens epoch {epoch}, replica {other.name} reads epoch {theirs.cursor.epoch}: replicas read "
                "the same epochs; load the same state into all of them"
            )
        if theirs.cursor.epoch == epoch and theirs.batching != opening.batching:
            return PlanError(
                f"{who} reads epoch {epoch} with {opening.batching}, and replica {other.name} with "
                f"{theirs.batching}: replicas must read an epoch with the same values"
            )
    return None
