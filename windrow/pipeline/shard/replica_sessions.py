"""Sessions of replicas: several readers of each shard, for which its rows are placed once."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from windrow.core.shared_batches import SharedPool
from windrow.pipeline.coordinator.scheduling.shard_tracker import Key
from windrow.pipeline.executors.base import CoordinatorClient, Session, WindowData, waiting_of
from windrow.pipeline.executors.preparation import Preparation
from windrow.pipeline.executors.replicas.client import DirectConnection, ReplicaClient
from windrow.pipeline.executors.replicas.host import ReplicaHost
from windrow.pipeline.plan.memory_budget import RUNS_AHEAD
from windrow.pipeline.plan.program import RUN_BYTES, Program
from windrow.pipeline.shard.placing import place_run, prepare_rows
from windrow.pipeline.statistics.stats import RunStats
from windrow.pipeline.tasks.narrow_outputs import fill_run
from windrow.shuffle.kernels.place_rows import MapOutputs
from windrow.shuffle.order.runs import Run


def make_host(
    program: Program,
    session: Session,
    shard: int,
    names: Sequence[str],
    seed: int | None,
    *,
    narrows: bool = False,
) -> ReplicaHost:
    """The host of a shard's replicas in this process; ``narrows``: it gets only what they want of the rows."""
    job = program.job
    after = () if job.packing is not None else job.after

    def place(data: WindowData, key: Key, map_outputs: Any, run: Run, pool: SharedPool) -> pa.RecordBatch:
        found = map_outputs
        if data.wanted.tokens and isinstance(map_outputs, MapOutputs):
            found, index = fill_run(map_outputs, run.index, run.rows, run.place, data.wanted)
            run = replace(run, index=index)
        return place_run(found, run, slice(0, run.rows), pool)

    def prepare(
        preparation: Preparation, data: WindowData, key: Key, run: Run, rows: pa.RecordBatch
    ) -> pa.RecordBatch:
        return prepare_rows(preparation, rows, data, key, shard, run.place, seed or 0) if after else rows

    return ReplicaHost(
        lambda batch_rows: session.shard_client(shard, batch_rows, seed),
        place,
        prepare,
        shard,
        names,
        limit_bytes=2 * RUNS_AHEAD * RUN_BYTES,
        max_ahead=RUNS_AHEAD,
        leads_on=job.leads_on,
        shards=program.shards if after else 0,
        narrows=narrows,
        fail_seconds=waiting_of(job.options).fail_seconds,
    )


class _Hosts:
    """The hosts of all shards in this process."""

    def __init__(self, program: Program, session: Session, names: Sequence[Sequence[str]]) -> None:
        self.session = session
        self._program = program
        self.names = names
        self._lock = threading.Lock()
        self._hosts: dict[int, ReplicaHost] = {}
        # (shard, replica): those that have closed before there was a host
        self._unread: set[tuple[int, int]] = set()

    def host(self, shard: int, seed: int | None) -> ReplicaHost:
        with self._lock:
            host = self._hosts.get(shard)
            if host is None:
                host = make_host(self._program, self.session, shard, self.names[shard], seed)
                self._hosts[shard] = host
                for replica in range(len(self.names[shard])):
                    if (shard, replica) in self._unread:
                        host.close(host.connect(replica), None)
            return host

    def note_unread(self, shard: int, replica: int) -> None:
        """A replica has closed before it read anything."""
        with self._lock:
            host = self._hosts.get(shard)
            self._unread.add((shard, replica))
            is_last = all((shard, other) in self._unread for other in range(len(self.names[shard])))
        note_unread = getattr(self.session, "note_unread", None)
        if host is not None:
            host.close(host.connect(replica), None)
        elif is_last and note_unread is not None:
            note_unread(shard)


class ReplicaSession:
    """The session of one replica of each shard; the methods are those of `Session`."""

    def __init__(self, hosts: _Hosts, replica: int) -> None:
        self._hosts = hosts
        self._replica = replica

    def shard_client(self, shard: int, batch_rows: int, seed: int | None) -> CoordinatorClient:
        host = self._hosts.host(shard, seed)
        return ReplicaClient(DirectConnection(host, self._replica), shard, self.replica_name(shard))

    def note_unread(self, shard: int) -> None:
        """Tell the other replicas of a shard that this one closes without having read: they need not wait for it."""
        self._hosts.note_unread(shard, self._replica)

    def replica_name(self, shard: int) -> str:
        """The name of this replica of a shard."""
        return self._hosts.names[shard][self._replica]

    def run_stats(self, *, spans: bool) -> RunStats | None:
        return self._hosts.session.run_stats(spans=spans)

    def export(self, shard: int) -> Session:
        return self._hosts.session.export(shard)

    def for_processes(self) -> Session:
        return self._hosts.session.for_processes()

    def for_workers(self, program: Program, shard: int) -> Session:
        return self._hosts.session.for_workers(program, shard)


def open_replica_sessions(
    program: Program, session: Session, names: Sequence[Sequence[str]]
) -> Sequence[Session]:
    """The sessions of all replicas of each shard; ``names`` has by shard those of its replicas."""
    if hasattr(session, "for_replica"):
        return [open_replica_session(session, names, replica) for replica in range(program.replicas)]
    hosts = _Hosts(program, session, names)
    return [ReplicaSession(hosts, replica) for replica in range(program.replicas)]


def open_replica_session(session: Any, names: Sequence[Sequence[str]], replica: int) -> Session:
    """The session of one replica of each shard, in a process of its own."""
    found: Session = session.for_replica(make_host, names, replica)
    return found
