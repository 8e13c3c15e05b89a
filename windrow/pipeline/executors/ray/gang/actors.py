"""The actors of a gang: those in which trainers run, and the one where they meet for barriers and common saves."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import ray
from ray import cloudpickle

from windrow.core.errors import StallError, StateError
from windrow.pipeline.executors.ray.cluster import this_node


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


@dataclass(frozen=True)
class Place:
    """Where a trainer runs: its node, a free port there, and its GPUs."""

    node: str
    host: str
    port: int
    gpus: tuple[str, ...]


@dataclass(frozen=True)
class Seat:
    """What a trainer is told of the gang."""

    rank: int
    local_rank: int
    local_world_size: int
    addresses: tuple[str, ...]
    # as a launcher sets them
    variables: Mapping[str, str]


def assign_seats(places: Sequence[Place]) -> list[Seat]:
    """The ranks on each node, and the variables by which torch.distributed finds the others."""
    by_node: dict[str, list[int]] = {}
    for rank, place in enumerate(places):
        by_node.setdefault(place.node, []).append(rank)
    seats = []
    for rank, place in enumerate(places):
        ranks = by_node[place.node]
        variables = {
            "RANK": rank,
            "WORLD_SIZE": len(places),
            "LOCAL_RANK": ranks.index(rank),
            "LOCAL_WORLD_SIZE": len(ranks),
            "GROUP_RANK": list(by_node).index(place.node),
            "MASTER_ADDR": places[0].host,
            "MASTER_PORT": places[0].port,
        }
        gpus = [gpu for each in ranks for gpu in places[each].gpus]
        if len(gpus) == len(set(gpus)) > 0:
            # each its own: all processes of a node see all of them, as under torchrun
            variables["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
        seats.append(
            Seat(
                rank,
                ranks.index(rank),
                len(ranks),
                tuple(each.host for each in places),
                {name: str(value) for name, value in variables.items()},
            )
        )
    return seats


class TrainerActor:
    """Runs the user's function once."""

    def place(self) -> Place:
        """Where this process runs."""
        host = ray.util.get_node_ip_address()
        with closing(socket.socket()) as probe:
            probe.bind(("", 0))
            port = probe.getsockname()[1]
        return Place(this_node(), host, port, tuple(map(str, ray.get_gpu_ids())))

    def run(
        self, train: Any, seat: Seat, attempt: int, shards: dict[str, Any], value: bytes | None, meeting: Any
    ) -> Any:
        """Call the user's function, by way of `GangPlan.train`."""
        os.environ.update(seat.variables)
        try:
            return train(
                rank=seat.rank,
                world_size=len(seat.addresses),
                local_rank=seat.local_rank,
                local_world_size=seat.local_world_size,
                addresses=seat.addresses,
                attempt=attempt,
                shards=shards,
                saved=None if value is None else cloudpickle.loads(value),
                meeting=MeetingClient(meeting, attempt, seat.rank),
            )
        finally:
            for shard in shards.values():
                shard.close()


class MeetingClient:
    """Calls the meeting for one trainer."""

    def __init__(self, meeting: Any, attempt: int, rank: int) -> None:
        self._meeting = meeting
        self._attempt = attempt
        self._rank = rank

    def barrier(self, number: int, timeout: float) -> None:
        self._call(self._meeting.barrier, number, timeout)

    def save(self, number: int, states: dict[str, Any], value: Any, timeout: float) -> None:
        self._call(self._meeting.save, number, states, cloudpickle.dumps(value), timeout)

    def _call(self, method: Any, *arguments: Any) -> None:
        try:
            ray.get(method.remote(self._attempt, self._rank, *arguments))
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None
