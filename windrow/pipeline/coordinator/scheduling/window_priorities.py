"""Window priorities: which windows shards wait for, which to prefetch, and which to read ahead."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from windrow.pipeline.coordinator.scheduling.events import Limits, Place
from windrow.pipeline.coordinator.scheduling.shard_tracker import Key, ShardTracker
from windrow.pipeline.plan.row_counts import EpochCounts

__all__ = ["WindowPriorities"]

# Windows read ahead beyond the prefetched ones where windows are smaller than the largest.
_READ_AHEAD_WINDOWS = 4


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

    def urgent(self, now: float) -> list[Key]:
        """The windows that shards are reading, oldest first, ignoring silent shards."""
        being_read = self._being_read()
        return sorted({key for key, shards in being_read if not self._shards.are_silent(shards, now)})

    def ahead(self, urgent: list[Key], now: float) -> list[Key]:
        """The windows to prefetch beyond the urgent ones, nearest first.

        Abandoned windows are excluded while their shards are silent.
        """
        return self._select(urgent, 0, self._limits.stop_epoch, now)

    def read_ahead(self, near: list[Key], now: float) -> list[Key]:
        """Windows beyond the prefetched ones for shards that are reading, nearest first.

        They lie in no later epoch than the ``near`` windows do.
        """
        stop_epoch = max((epoch for epoch, _ in near), default=-1) + 1
        return self._select(near, _READ_AHEAD_WINDOWS, stop_epoch, now)

    def _select(self, nearer: list[Key], extra: int, stop_epoch: int | None, now: float) -> list[Key]:
        candidates = list(self._being_read())
        for place, reading, shards in self._shards.groups():
            has_started = self._limits.crosses_epochs and place.epoch > 0
            if reading or has_started:
                count = self._limits.prefetch_windows + (extra if reading else 0)
                following = self._following(place, reading, count, stop_epoch)
                candidates.extend((key, shards) for key in following)
        return sorted(
            {
                key
                for key, shards in candidates
                if key not in nearer and not (key in self._abandoned and self._shards.are_silent(shards, now))
            }
        )

    def _being_read(self) -> Iterator[tuple[Key, Collection[int]]]:
        for place, reading, shards in self._shards.groups():
            if not reading:
                continue
            # windows without parts have nothing to wait for
            window = self._counts(place.epoch).next_with_parts(place.window)
            if window < self._window_count(place.epoch):
                yield (place.epoch, window), shards

    def _following(self, place: Place, reading: bool, left: int, stop_epoch: int | None) -> Iterator[Key]:
        epoch, window = place.epoch, place.window
        if reading:
            window = self._counts(epoch).next_with_parts(window) + 1
        while left > 0 and (stop_epoch is None or epoch < stop_epoch):
            window = self._counts(epoch).next_with_parts(window)
            if window >= self._window_count(epoch):
                if not self._limits.crosses_epochs or epoch > place.epoch + left:
                    return
                epoch, window = epoch + 1, 0
                continue
            yield epoch, window
            left -= 1
            window += 1

    def _window_count(self, epoch: int) -> int:
        return len(self._counts(epoch).shape.windows)
