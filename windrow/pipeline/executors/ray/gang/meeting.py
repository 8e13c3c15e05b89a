"""The actor where the trainers of a gang meet: barriers, and the saves that all of them have reached."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from windrow.core.errors import StallError, StateError

__all__ = ["Checkpoint", "MeetingActor"]


@dataclass(frozen=True)
class Checkpoint:
    """A save that all trainers have reached: the states of the datasets, and each trainer's pickled value."""

    states: dict[str, Any]
    values: list[bytes]


@dataclass
class _Attempt:
    number: int
    arrived: dict[int, set[int]] = field(default_factory=dict)
    saving: dict[int, dict[int, tuple[dict[str, Any], bytes]]] = field(default_factory=dict)
    saves: int = 0
    returned: set[int] = field(default_factory=set)
    # why trainers can no longer go on together
    broken: str = ""


class MeetingActor:
    """Counts the trainers at each barrier and save of the present attempt. Runs as an async actor of Ray."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._attempt = _Attempt(-1)
        self._checkpoint: Checkpoint | None = None
        self._changed = asyncio.Condition()

    async def begin(self, attempt: int) -> Checkpoint | None:
        """Start an attempt, which ends all waits of the one before; return where it goes on."""
        async with self._changed:
            self._attempt = _Attempt(attempt)
            self._changed.notify_all()
        return self._checkpoint

    async def leave(self, attempt: int, rank: int) -> None:
        """Record that a trainer has returned, so that nobody waits for it."""
        async with self._changed:
            if attempt == self._attempt.number:
                self._attempt.returned.add(rank)
                self._changed.notify_all()

    async def barrier(self, attempt: int, rank: int, number: int, timeout: float) -> None:
        """Wait until all trainers have come to a barrier; raises a StallError that names who has not."""
        async with self._changed:
            current = self._current(attempt)
            arrived = current.arrived.setdefault(number, set())
            arrived.add(rank)
            self._changed.notify_all()
            try:
                await self._await(
                    current, lambda: self._missing(arrived), f"rank {rank} at barrier {number + 1}", timeout
                )
            except StallError:
                if len(arrived) < self._size:
                    arrived.discard(rank)
                raise

    async def save(
        self, attempt: int, rank: int, number: int, states: dict[str, Any], value: bytes, timeout: float
    ) -> None:
        """Keep what a trainer saves; the save counts once all trainers have sent it."""
        async with self._changed:
            current = self._current(attempt)
            await self._await(
                current,
                lambda: (
                    set() if current.saves >= number else self._missing(current.saving.get(number - 1, {}))
                ),
                f"rank {rank} at save {number + 1}",
                timeout,
            )
            saving = current.saving.setdefault(number, {})
            saving[rank] = states, value
            for other, (others, _) in saving.items():
                if others != states:
                    current.broken = (
                        f"rank {rank} saves at another place of the data than rank {other}, at save {number + 1}: "
                        "all trainers must call save() after the same step"
                    )
                    self._changed.notify_all()
                    raise StateError(current.broken)
            if len(saving) == self._size:
                self._checkpoint = Checkpoint(states, [saving[each][1] for each in range(self._size)])
                current.saves = number + 1
                del current.saving[number]
                self._changed.notify_all()

    def _current(self, attempt: int) -> _Attempt:
        if attempt != self._attempt.number:
            raise StallError(f"attempt {attempt + 1} of this gang has ended")
        if self._attempt.broken:
            raise StateError(self._attempt.broken)
        return self._attempt

    def _missing(self, present: Any) -> set[int]:
        return set(range(self._size)) - set(present)

    async def _await(
        self, current: _Attempt, missing: Callable[[], set[int]], who: str, timeout: float
    ) -> None:
        def is_decided() -> bool:
            absent = missing()
            return not absent or bool(absent & current.returned) or self._is_over(current)

        try:
            await asyncio.wait_for(self._changed.wait_for(is_decided), timeout)
        except asyncio.TimeoutError:
            raise StallError(
                f"{who} waited {timeout:g} s for {_ranks(missing())}, which did not come there"
            ) from None
        absent = missing()
        if absent & current.returned:
            raise StallError(f"{who}: {_ranks(absent & current.returned)} returned without coming there")
        if absent:
            self._current(current.number)

    def _is_over(self, current: _Attempt) -> bool:
        return current is not self._attempt or bool(current.broken)


def _ranks(ranks: set[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, sorted(ranks)))}"
