"""What is simulated: the nodes and their network, what work costs, and how trainers read."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

__all__ = ["Cluster", "Costs", "read_costs"]

GB = 1e9
GBIT = 1e9 / 8


@dataclass(frozen=True)
class Costs:
    """Core seconds of the pieces of work; `bench.scale.calibrate` measures them here.

    Attributes
    ----------
    decode, group, put, place, consume
        For a decoded byte: reading Parquet; computing positions and grouping; writing
        into the object store; placing a run; conversion to tensors and what the trainer
        does with them.
    transfer
        For a byte that crosses nodes, on each of the two.
    task
        For a map task, beside its bytes; on Ray what its daemons use.
    run
        For a run, beside its bytes: handing it from thread to thread.
    get
        For an object that a shard maps into its process.
    owner_task, owner_object, owner_handle, owner_call
        In the coordinator's busiest thread, for Ray's part: a task, an object that it puts out,
        a handle in an answer, a call.
    call
        For a call, beside that thread: in the process that calls, and in the owner's other threads
        (all of it is charged to the caller's node).
    wake
        In the coordinator, for a waiting request at every piece of news.
    """

    decode: float = 0.65 / GB
    group: float = 0.25 / GB
    put: float = 0.2 / GB
    place: float = 0.25 / GB
    consume: float = 0.01 / GB
    transfer: float = 0.6 / GB
    task: float = 1e-3
    run: float = 0.2e-3
    get: float = 20e-6
    owner_task: float = 0.44e-3
    owner_object: float = 31e-6
    owner_handle: float = 10e-6
    owner_call: float = 0.2e-3
    call: float = 0.8e-3
    wake: float = 8e-6

    @property
    def map(self) -> float:
        """For a decoded byte of a map task."""
        return self.decode + self.group + self.put


def read_costs(path: Path) -> Costs:
    """Costs that were measured elsewhere, as JSON.

    Raises
    ------
    ValueError
        If the file holds something else.
    """
    given: dict[str, Any] = json.loads(path.read_text())
    known = {field.name for field in fields(Costs)}
    if unknown := sorted(given.keys() - known):
        raise ValueError(f"--costs {path}: {', '.join(unknown)} are no costs; there are {', '.join(known)}")
    return Costs(**{name: float(value) for name, value in given.items()})


@dataclass(frozen=True)
class Cluster:
    """Equal nodes, each with some trainers; the coordinator lives on the first.

    Attributes
    ----------
    nodes, cpus
        Nodes, and the CPUs of each.
    cpu_speed
        How fast one is, against the core that costs were measured on.
    memory_bytes, store_share
        Of a node, and how much of it is object store.
    nic_bytes
        What a node can send a second, and what it can receive.
    connections, connection_bytes, first_byte_seconds
        A task's connections to the store, what each brings a second, and how long the
        store takes to answer; 0 connections: the data is in the page cache.
    stored_share
        Stored bytes over decoded bytes.
    trainers, placers
        Trainers on a node, and threads that place each one's runs.
    trainer_bytes
        What a trainer can take a second at most; None: as much as it gets.
    threads
        All in one process, without Ray: one pool places runs and runs tasks.
    """

    nodes: int = 1
    cpus: int = 2
    cpu_speed: float = 1.0
    memory_bytes: float = 24 * GB
    store_share: float = 0.3
    nic_bytes: float = 10 * GBIT
    connections: int = 4
    connection_bytes: float = 0.087 * GB
    first_byte_seconds: float = 0.15
    stored_share: float = 0.36
    trainers: int = 1
    placers: int = 2
    trainer_bytes: float | None = None
    threads: bool = False

    @property
    def shards(self) -> int:
        """All trainers."""
        return self.nodes * self.trainers

    @property
    def store_bytes(self) -> int:
        """Object store of a node."""
        return int(self.memory_bytes * self.store_share)
