"""Tracks the progress of each shard, what it still needs, and its heartbeats."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from windrow.pipeline.coordinator.scheduling.events import Place

__all__ = ["Key", "ShardTracker"]

# (epoch, window)
Key = tuple[int, int]


class ShardTracker:
    """The shards that are served.

    Parameters
    ----------
    shards
        Their numbers.
    start
        Where the stream starts.
    heartbeat_timeout_seconds
        A shard without a heartbeat for this long counts as silent.
    on_demand
        Whether a shard without an open epoch needs nothing.

    Attributes
    ----------
    progress
        The place of each open shard.
    reading
        The shards that have an epoch open.
    """

    def __init__(
        self,
        shards: tuple[int, ...],
        start: Place,
        heartbeat_timeout_seconds: float,
        *,
        on_demand: bool = False,
    ) -> None:
        self._on_demand = on_demand
        self.progress = dict.fromkeys(shards, start)
        self.reading: set[int] = set()
        # grouped by place: even thousands of shards are at a few places only
        self._groups: dict[tuple[Place, bool], dict[int, None]] = {(start, False): dict.fromkeys(shards)}
        self._heartbeat_timeout_seconds = heartbeat_timeout_seconds
        self._heartbeats: dict[int, float] = {}
        self._started_at: float | None = None

    def start(self, now: float) -> bool:
        """Record when the run started; returns whether this is the first call."""
        is_first = self._started_at is None
        if is_first:
            self._started_at = now
        return is_first

    def open(self, shard: int, place: Place, now: float) -> None:
        """A shard opens an epoch."""
        self._leave(shard)
        self.reading.add(shard)
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
            self.reading.discard(shard)
        self._enter(shard, place)
        return True

    def heartbeat(self, shard: int, now: float) -> None:
        """A shard's consumer is alive."""
        self._heartbeats[shard] = now

    def close(self, shard: int) -> None:
        """A shard has stopped reading."""
        self._leave(shard)
        self.reading.discard(shard)

    def _enter(self, shard: int, place: Place) -> None:
        self.progress[shard] = place
        self._groups.setdefault((place, shard in self.reading), {})[shard] = None

    def _leave(self, shard: int) -> None:
        place = self.progress.pop(shard, None)
        if place is not None:
            group = place, shard in self.reading
            del self._groups[group][shard]
            if not self._groups[group]:
                del self._groups[group]

    def groups(self) -> Iterator[tuple[Place, bool, Collection[int]]]:
        """Open shards grouped by place and by whether they have an epoch open there."""
        for (place, reading), shards in self._groups.items():
            yield place, reading, shards

    def first_kept(self, key: Key) -> int | None:
        """The first slice of a window that a shard still needs; None: no shard does."""
        slices = [
            place.slice if (place.epoch, place.window) == key else 0
            for place, _ in self._holders()
            if (place.epoch, place.window) <= key
        ]
        return min(slices, default=None)

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
        holders = (shards for place, shards in self._holders() if (place.epoch, place.window) <= key)
        return all(self.are_silent(shards, now) for shards in holders)

    def heartbeats(self, now: float) -> list[tuple[int, Place, str]]:
        """Each open shard, its place, and the age of its last heartbeat as text."""
        return [
            (
                shard,
                place,
                f"{now - self._heartbeats[shard]:.0f} s ago" if shard in self._heartbeats else "never",
            )
            for shard, place in sorted(self.progress.items())
        ]
