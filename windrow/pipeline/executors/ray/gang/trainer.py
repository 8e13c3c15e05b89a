"""The actor in which a trainer of a gang runs."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import ray
from ray import cloudpickle

from windrow.pipeline.executors.ray.nodes import this_node

__all__ = ["Place", "Seat", "TrainerActor", "assign_seats"]


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
                meeting=_MeetingClient(meeting, attempt, seat.rank),
            )
        finally:
            for shard in shards.values():
                shard.close()


class _MeetingClient:
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
