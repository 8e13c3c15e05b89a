"""Random meshes: replicas of each shard, read at random paces, that die, return, close early or leave epochs."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from hypothesis import strategies as st

from tests.laws.cases import CASES, Case, Rows
from tests.laws.reading import JOIN_SECONDS, take_rows
from windrow.pipeline.executors.base import Executor
from windrow.pipeline.plan.cursor import Cursor
from windrow.pipeline.shard.open_shards import open_replicas
from windrow.pipeline.shard.shard import Shard

# what happens to a reader after some steps: its process dies, it loads its own state, or it closes and starts again
Fault = Literal["dies", "reloads", "closes"]


@dataclass(frozen=True)
class MeshCase:
    """A case, and the replicas that read each of its shards; those without a plan read everything.

    Attributes
    ----------
    prefetch
        By replica, batches that it prefetches.
    faults
        What happens to a replica, given by shard and replica, after how many steps.
    seed
        Of the pauses between batches.
    columns
        By replica and epoch in turn, the columns that it selects; None: all.
    """

    case: Case
    replicas: int
    prefetch: tuple[int, ...] = (2, 2, 2, 2)
    faults: tuple[tuple[int, int, int, Fault], ...] = ()
    seed: int = 0
    columns: tuple[tuple[tuple[str, ...] | None, ...], ...] = ((None,),)

    def columns_of(self, replica: int, epoch: int) -> list[str] | None:
        """What a replica selects in an epoch."""
        by_epoch = self.columns[replica % len(self.columns)]
        found = by_epoch[epoch % len(by_epoch)]
        return None if found is None else list(found)

    def fault(self, shard: int, replica: int) -> list[tuple[int, Fault]]:
        """The faults of one replica, in order, of shards and replicas that there are."""
        case = self.case
        found = [
            (steps, fault)
            for at, which, steps, fault in self.faults
            if (at % case.shards, which % self.replicas) == (shard, replica)
        ]
        return sorted(found)


FAULTS = st.tuples(
    st.integers(0, 3),
    st.integers(0, 3),
    st.integers(0, 12),
    st.sampled_from(["dies", "reloads", "closes"]),
)
MESH_CASES = st.builds(
    MeshCase,
    case=CASES,
    replicas=st.integers(1, 4),
    prefetch=st.tuples(*[st.sampled_from([1, 2, 9])] * 4),
    seed=st.integers(0, 2**16),
)
FAULTY_CASES = st.builds(replace, MESH_CASES, faults=st.lists(FAULTS, min_size=1, max_size=4).map(tuple))
SELECTED = st.sampled_from([("x",), ("half", "x"), ("x", "flag"), None])
SELECTING_CASES = st.builds(
    replace,
    MESH_CASES | FAULTY_CASES,
    # seldom the same in the next epoch
    columns=st.lists(
        st.lists(SELECTED, min_size=2, max_size=3, unique=True).map(tuple), min_size=1, max_size=3
    ).map(tuple),
)


class Returns:
    """The epochs to which replicas return that have closed: others read none after the next one meanwhile.

    A host does not wait for a replica that has closed, and refuses it once the others are two epochs ahead.
    """

    def __init__(self) -> None:
        self._epochs: dict[tuple[int, int], int] = {}
        self._changed = threading.Condition()

    def begin(self, number: tuple[int, int], epoch: int) -> None:
        """Note that a replica closes, and will return to an epoch."""
        with self._changed:
            self._epochs[number] = epoch

    def end(self, number: tuple[int, int]) -> None:
        """Note that it reads again."""
        with self._changed:
            self._epochs.pop(number, None)
            self._changed.notify_all()

    def wait(self, epoch: int) -> None:
        """Wait until no replica is to return to an epoch two before this one."""
        with self._changed:
            allowed = self._changed.wait_for(
                lambda: all(each + 1 >= epoch for each in self._epochs.values()), JOIN_SECONDS
            )
        assert allowed, f"a replica has not returned: {self._epochs}"


@dataclass
class ReplicaReading:
    """What one replica has got: batches by epoch, of all processes that have read for it."""

    shard: Shard
    mesh: MeshCase
    number: tuple[int, int]
    returns: Returns
    epochs: list[list[Rows]] = field(default_factory=list)
    _open: Any = None
    _epoch: int = 0

    def read(self) -> list[list[Rows]]:
        """Read all epochs, with faults between."""
        turns = random.Random(f"{self.mesh.seed} {self.number}")
        faults = self.mesh.fault(*self.number)
        steps = 0
        self.epochs = [[] for _ in range(self.mesh.case.epochs)]
        while True:
            until = faults[0][0] if faults else None
            try:
                steps, ended = self._read_until(steps, until, turns)
            except BaseException:
                self.returns.end(self.number)
                raise
            if ended:
                self.shard.close()
                return self.epochs
            self._suffer(faults.pop(0)[1])

    def _read_until(self, steps: int, until: int | None, turns: random.Random) -> tuple[int, bool]:
        case = self.mesh.case
        if until is not None and steps >= until:
            return steps, False
        for epoch in self.shard.iter_epochs():
            self._epoch = epoch.number
            self.returns.wait(epoch.number)
            batches = epoch.iter_batches(
                case.batch_rows,
                drop_last=case.drop_last,
                prefetch_batches=self.mesh.prefetch[self.number[1]],
                columns=(columns := self.mesh.columns_of(self.number[1], epoch.number)),
                balance=case.balance,
            )
            for batch in batches:
                self.returns.end(self.number)
                self.epochs[epoch.number].append(take_rows(_with_all_columns(batch, columns)))
                scribble(batch)
                steps += 1
                time.sleep(turns.choice([0, 0, 0, 1e-4, 2e-3]))
                if until is not None and steps >= until:
                    self._state = self.shard.state_dict()
                    self._open = batches
                    return steps, False
            self.returns.end(self.number)
        return steps, True

    def _suffer(self, fault: Fault) -> None:
        state, before = self.shard.state_dict(), self.shard
        if fault == "dies":
            # nothing is closed
            self.shard = Shard(before._program, before._session, before._shard, Cursor())
            self._kept = before
        else:
            if self._open is not None:
                self._open.close()
            if fault == "closes":
                self.returns.begin(self.number, self._epoch)
                before.close()
                self.shard = Shard(before._program, before._session, before._shard, Cursor())
        self.shard.load_state_dict(state)


def _with_all_columns(batch: Any, columns: list[str] | None) -> Any:
    """A batch with the columns that its reader did not select, as they follow from the number of the row."""
    if columns is None:
        return batch
    if isinstance(batch, list):
        return [_with_all_columns(part, columns) for part in batch]
    assert list(batch) == columns
    x = np.asarray(batch["x"])
    flag = np.abs(x if x.ndim == 1 else x // 8) % 2
    half = (np.abs(x) if x.ndim == 1 else x).astype(np.float32) / 2
    return {"half": half, "flag": flag, **batch}


def scribble(batch: Any) -> None:
    """Overwrite a batch, which is its reader's own."""
    for part in batch if isinstance(batch, list) else ():
        scribble(part)
    if isinstance(batch, dict):
        for values in batch.values():
            if hasattr(values, "flags") and values.flags.writeable:
                values[...] = 77


def read_mesh(mesh: MeshCase, executor: str | Executor) -> list[list[list[list[Rows]]]]:
    """By shard and replica, the batches of each epoch, read in threads."""
    case = mesh.case
    made = open_replicas(case.job(executor), case.shards, mesh.replicas, equal=case.equal)
    returns = [Returns() for _ in made]
    readings = [
        [ReplicaReading(each, mesh, (shard, number), returns[shard]) for number, each in enumerate(of_shard)]
        for shard, of_shard in enumerate(made)
    ]
    pool = ThreadPoolExecutor(case.shards * mesh.replicas)
    try:
        running = [[pool.submit(each.read) for each in of_shard] for of_shard in readings]
        return [[each.result(JOIN_SECONDS) for each in of_shard] for of_shard in running]
    finally:
        for of_shard in readings:
            for each in of_shard:
                each.shard.close()
        pool.shutdown(wait=False)


def assert_same_batches(mesh: MeshCase, found: Sequence[Sequence[list[list[Rows]]]]) -> None:
    """Check that every replica has got the batches that the laws demand of its shard."""
    for epoch in range(mesh.case.epochs):
        assigned = mesh.case.assigned(epoch)
        for of_shard, batches in zip(found, assigned.batches, strict=True):
            for of_replica in of_shard:
                assert of_replica[epoch] == batches
