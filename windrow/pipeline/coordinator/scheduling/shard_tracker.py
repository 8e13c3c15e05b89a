"""Tracks the progress of each shard, and with it which windows are waited for, to prefetch and to read ahead."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import chain, repeat
from typing import Any

from windrow.pipeline.coordinator.scheduling.events import Limits
from windrow.pipeline.plan.cursor import Place
from windrow.pipeline.plan.epoch_shape import EpochCounts

# (epoch, window)
Key = tuple[int, int]
# Windows read ahead beyond the prefetched ones where windows are smaller than the largest.
_READ_AHEAD_WINDOWS = 4


class ShardTracker:
    """The shards that are served: ``progress`` has the place of each that is open.

    One without a heartbeat for the timeout counts as silent. Where epochs are not crossed, a shard
    that has no epoch open needs nothing. ``first_slice`` tells from which slice on a window, by epoch and number, is
    needed at a place of its epoch; None: it is not needed.
    """

    def __init__(self, limits: Limits, first_slice: Callable[[Key, Place], int | None]) -> None:
        self._first_slice = first_slice
        self._on_demand = not limits.crosses_epochs
        start = Place(0, 0)
        self.progress = dict.fromkeys(limits.shards, start)
        self._reading: set[int] = set()
        # grouped by place: even thousands of shards are at a few places only
        self._groups: dict[tuple[Place, bool], dict[int, None]] = {
            (start, False): dict.fromkeys(limits.shards)
        }
        self._heartbeat_timeout_seconds = limits.heartbeat_timeout_seconds
        self._heartbeats: dict[int, float] = {}
        self._started_at: float | None = None

    def start(self, now: float) -> bool:
        """Record when the run started; returns whether this is the first call."""
        is_first = self._started_at is None
        if is_first:
            self._started_at = now
        return is_first

    def open(self, shard: int, place: Place, now: float) -> None:
        self._leave(shard)
        self._reading.add(shard)
        self._enter(shard, place)
        self._heartbeats[shard] = now

    def acknowledge(self, shard: int, place: Place, now: float) -> bool:
        """A shard needs nothing before a place; returns whether it has advanced."""
        if shard not in self.progress:
            return False
        self._heartbeats[shard] = now
        before = self.progress[shard]
        if place <= before:
            return False
        self._leave(shard)
        if place.epoch > before.epoch:
            self._reading.discard(shard)
        self._enter(shard, place)
        return True

    def heartbeat(self, shard: int, now: float) -> None:
        self._heartbeats[shard] = now

    def close(self, shard: int) -> None:
        self._leave(shard)
        self._reading.discard(shard)

    def _enter(self, shard: int, place: Place) -> None:
        self.progress[shard] = place
        self._groups.setdefault((place, shard in self._reading), {})[shard] = None

    def _leave(self, shard: int) -> None:
        place = self.progress.pop(shard, None)
        if place is not None:
            group = place, shard in self._reading
            del self._groups[group][shard]
            if not self._groups[group]:
                del self._groups[group]

    def groups(self) -> Iterator[tuple[Place, bool, Collection[int]]]:
        """Open shards grouped by place and by whether they have an epoch open there."""
        return ((place, reading, shards) for (place, reading), shards in self._groups.items())

    def first_kept(self, key: Key) -> int | None:
        """The first slice of a window that a shard still needs; None: no shard does."""
        first: int | None = None
        # asked of every window whenever a shard advances
        for place, reading in self._groups:
            if reading or not self._on_demand:
                number = self._first_needed(key, place)
                if number is not None and (first is None or number < first):
                    first = number
        return first

    def _first_needed(self, key: Key, place: Place) -> int | None:
        if place.epoch != key[0]:
            return 0 if place.epoch < key[0] else None
        return self._first_slice(key, place)

    def oldest_epoch(self) -> int | None:
        """The first epoch that a shard still needs; None: no shard needs any."""
        return min((place.epoch for place, _ in self._holders()), default=None)

    def _holders(self) -> Iterator[tuple[Place, Collection[int]]]:
        """Places, and the shards there, that windows are held for from that place on."""
        for place, reading, shards in self.groups():
            if not self._on_demand or reading:
                yield place, shards

    def is_silent(self, shard: int, now: float) -> bool:
        """Whether a shard has sent no heartbeat within the timeout."""
        heartbeat = self._heartbeats.get(shard, self._started_at)
        return heartbeat is not None and now - heartbeat >= self._heartbeat_timeout_seconds

    def are_silent(self, shards: Collection[int], now: float) -> bool:
        """Whether all of these shards are silent."""
        return all(self.is_silent(shard, now) for shard in shards)

    def is_lagging(self, key: Key, now: float) -> bool:
        """Whether a window is held for silent shards only."""
        holders = (shards for place, shards in self._holders() if self._first_needed(key, place) is not None)
        return all(self.are_silent(shards, now) for shards in holders)

    def format_heartbeat(self, shard: int, now: float) -> str:
        """The age of a shard's last heartbeat as text."""
        return f"{now - self._heartbeats[shard]:.0f} s ago" if shard in self._heartbeats else "never"


class WindowPriorities:
    """The windows that shards wait for, and those to prepare in advance; ``counts`` are those of an epoch."""

    def __init__(self, limits: Limits, shards: ShardTracker, counts: Callable[[int], EpochCounts]) -> None:
        self._limits = limits
        self._shards = shards
        self._counts = counts
        self._abandoned: set[Key] = set()

    def abandon(self, key: Key) -> None:
        """Do not prepare a window again while the shards that need it are silent."""
        self._abandoned.add(key)

    def resume(self, key: Key) -> None:
        """An abandoned window is being prepared again."""
        self._abandoned.discard(key)

    def forget_passed(self) -> None:
        """Forget abandoned windows that no shard needs any more."""
        self._abandoned = {key for key in self._abandoned if self._shards.first_kept(key) is not None}

    def basis(self, now: float) -> tuple[Any, ...]:
        """What tells which windows are urgent or ahead, beside the shapes of epochs."""
        groups = [
            (place, reading, self._shards.are_silent(shards, now))
            for place, reading, shards in self._shards.groups()
        ]
        return (*groups, frozenset(self._abandoned))

    def urgent(self, now: float) -> dict[Key, None]:
        """The windows that shards are reading, as keys, oldest first, ignoring silent shards."""
        found: set[Key] = set()
        for place, reading, shards in self._shards.groups():
            if reading and not self._shards.are_silent(shards, now):
                found.update(self._being_read(place))
        return dict.fromkeys(sorted(found))

    def ahead(self, urgent: Mapping[Key, None], now: float) -> list[Key]:
        """The windows to prefetch beyond the urgent ones, nearest first.

        Abandoned windows are excluded while their shards are silent.
        """
        return self._select(urgent, 0, self._limits.stop_epoch, now)

    def read_ahead(self, near: Mapping[Key, None], now: float) -> list[Key]:
        """Windows beyond the prefetched ones for shards that are reading, nearest first.

        They lie in no later epoch than the ``near`` windows do.
        """
        stop_epoch = max((epoch for epoch, _ in near), default=-1) + 1
        return self._select(near, _READ_AHEAD_WINDOWS, stop_epoch, now)

    def _select(
        self, nearer: Mapping[Key, None], extra: int, stop_epoch: int | None, now: float
    ) -> list[Key]:
        found: set[Key] = set()
        for place, reading, shards in self._shards.groups():
            keys = self._being_read(place) if reading else iter(())
            if reading or (self._limits.crosses_epochs and place.epoch > 0):
                count = self._limits.prefetch_windows + (extra if reading else 0)
                keys = chain(keys, *self._following(place, reading, count, stop_epoch))
            if self._abandoned and self._shards.are_silent(shards, now):
                keys = (key for key in keys if key not in self._abandoned)
            found.update(keys)
        return sorted(found.difference(nearer))

    def needed_together(self, key: Key) -> list[Key]:
        """The windows without which no shard can go on where a window is needed first; mostly itself alone."""
        epoch, window = key
        rounds = self._counts(epoch).shape.rounds
        if rounds is None:
            return [key]
        places = (place.window for place, _, _ in self._shards.groups() if place.epoch == epoch)
        first = min((number for number in places if window in rounds.windows(number)), default=None)
        return [key] if first is None else [(epoch, other) for other in rounds.windows(first)]

    def _being_read(self, place: Place) -> Iterator[Key]:
        """The windows that shards wait for which have an epoch open at a place."""
        # windows without parts have nothing to wait for
        fetched = self._counts(place.epoch).next_with_parts(place.window)
        return self._keys(place.epoch, fetched) if fetched < self._fetched_count(place.epoch) else iter(())

    def _following(
        self, place: Place, reading: bool, left: int, stop_epoch: int | None
    ) -> Iterator[Iterator[Key]]:
        epoch, window = place.epoch, place.window
        if reading:
            window = self._counts(epoch).next_with_parts(window) + 1
        while left > 0 and (stop_epoch is None or epoch < stop_epoch):
            window = self._counts(epoch).next_with_parts(window)
            if window >= self._fetched_count(epoch):
                if not self._limits.crosses_epochs or epoch > place.epoch + left:
                    return
                epoch, window = epoch + 1, 0
                continue
            yield self._keys(epoch, window)
            left -= 1
            window += 1

    def _keys(self, epoch: int, fetched: int) -> Iterator[Key]:
        """The windows that hold what shards fetch by a number; a round of a mixture has hundreds."""
        return zip(repeat(epoch), self._counts(epoch).shape.windows_of(fetched))

    def _fetched_count(self, epoch: int) -> int:
        return self._counts(epoch).shape.fetched
