"""`attach`: makes all ranks of a job share one run, in which every block is read and decoded once."""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
from collections import Counter
from typing import Any, ClassVar

from windrow.core.errors import PlanError
from windrow.core.optional_dependencies import require
from windrow.core.terminal_text import format_count
from windrow.core.user_warnings import warn_user
from windrow.pipeline.executors.base import Session, Waiting, is_distributed, waiting_of
from windrow.pipeline.launch.agreement import Agreement, Member, agree_on_run, compare_first_read
from windrow.pipeline.launch.launcher import find_attempt, find_rank, has_launcher
from windrow.pipeline.launch.rendezvous import Rendezvous, find_store, has_store
from windrow.pipeline.plan.cursor import Cursor
from windrow.pipeline.plan.job import Options
from windrow.pipeline.plan.mesh_place import MeshPlace
from windrow.pipeline.plan.program import Program
from windrow.shuffle.order.batching import Batching


class Attachment:
    """The place of a process among the ranks that share runs; made by `attach`.

    It lasts until the process ends, or until `close`. A context manager.

    Examples
    --------
    >>> import windrow
    >>> with windrow.attach() as attached:
    ...     attached.rank, attached.world_size
    (0, 1)
    """

    def __init__(
        self, rank: int, world_size: int, rendezvous: Rendezvous | None, supervisor: Any, lifeline: Any
    ) -> None:
        self._rank = rank
        self._world_size = world_size
        self._rendezvous = rendezvous
        self._supervisor = supervisor
        self._lifeline = lifeline
        self._pid = os.getpid()
        self._runs = 0

    def __repr__(self) -> str:
        return f"Attachment(rank {self._rank} of {self._world_size}, Ray at {self.address})"

    @property
    def rank(self) -> int:
        """Index of this process among all that share runs, from 0."""
        return self._rank

    @property
    def world_size(self) -> int:
        """Number of processes that share runs."""
        return self._world_size

    @property
    def address(self) -> str:
        """The address of the Ray cluster, ``host:port``."""
        return str(self._supervisor.address)

    def __enter__(self) -> Attachment:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the runs. The cluster, if windrow started it, ends once every process has left."""
        with _Current.lock:
            if _Current.attachment is self:
                _Current.attachment = None
        ray = sys.modules.get("ray")
        is_connected = ray is not None and ray.is_initialized() and self._supervisor.adds_node
        # not from another cluster, to which the user has connected since
        if ray is not None and is_connected and ray.get_runtime_context().gcs_address == self.address:
            ray.shutdown()
        self._lifeline.close()

    def session(self, program: Program, place: MeshPlace, begin: Cursor) -> tuple[Session, list[list[str]]]:
        """The session of a run that all ranks share, and by shard the names of its replicas.

        Ranks call this equally often, each with its place, and begin at the same row of the stream.
        """
        from windrow.pipeline.executors.ray.executor import SharedSession, start_run

        waiting = waiting_of(program.job.options)

        def start(ips: list[list[str]]) -> tuple[str, Any]:
            return start_run(self._lifeline, program, ips, waiting.fail_seconds)

        number, self._runs = self._runs, self._runs + 1
        ip = self._supervisor.ip or self._lifeline.local_ip
        if self._rendezvous is None:
            name, nodes = start([[ip]])
            run = Agreement(name, nodes, [[place.name]])
        else:
            member = Member(place.rank, place.replica, place.name, ip)
            run = agree_on_run(self._rendezvous, number, program, member, begin, start, waiting)
        return SharedSession(self._supervisor.cluster, run.name, program, run.nodes), run.replicas


class _Current:
    """The attachment of this process: a process has one connection to Ray, so it has one of these."""

    lock = threading.Lock()
    attachment: Attachment | None = None
    # all ranks attach equally often, so this number tells the values of one attachment from another's
    attached_before = 0


def attach(
    *, rank: int | None = None, world_size: int | None = None, stall_timeout: float | None = None
) -> Attachment:
    """Make all ranks of a job share one run: each row group is read and decoded once in the whole job.

    ``pipe.shard()`` calls it by itself under a launcher, such as torchrun, where Ray is installed. Call it
    yourself before to be told why ranks cannot share a run, or in a process without a launcher, so that the
    workers of a torch ``DataLoader`` share one. All ranks must call it.

    The first process of each node starts Ray there, for this job alone: on the node of rank 0 the head, on the
    others a node that joins it. Where the variable RAY_ADDRESS names a cluster, or this process is connected to
    one, that cluster is used. Ranks find each other through the store of torch.distributed, or MASTER_ADDR and
    MASTER_PORT. The Ray processes and their files are removed when all ranks have ended, also by SIGKILL.

    Parameters
    ----------
    rank, world_size
        Index of this process and number of processes. None: taken from torch.distributed if it is
        initialised, else from the launcher's variables; without a launcher, 0 and 1.
    stall_timeout
        Seconds to wait for other ranks. None: 1,800, or 540 where torch.distributed is initialised.

    Raises
    ------
    PlanError
        If Ray is not installed, the ranks cannot find each other, or Ray does not start.
    StallError
        If a rank does not come; the message names it.

    Examples
    --------
    >>> import windrow
    >>> with windrow.attach() as attached, windrow.range(9).repeat(1).shard() as shard:
    ...     print(attached.rank, attached.world_size, sum(1 for row in shard.iter_rows()))
    0 1 9
    """
    with _Current.lock:
        current = _Current.attachment
        _check_not_forked(current)
        is_given = rank is not None or world_size is not None
        place = find_rank(rank, world_size) if is_given else _find_place(current)
        if current is not None:
            if place != (current.rank, current.world_size):
                raise PlanError(
                    f"this process is attached as rank {current.rank} of {current.world_size}, and cannot be "
                    f"rank {place[0]} of {place[1]} as well: close() that attachment before"
                )
            return current
        require("ray", "ray", "attach()")
        _Current.attachment = _attach(*place, waiting_of(Options(stall_timeout=stall_timeout)))
        return _Current.attachment


def attachment_for(options: Options, ranks: int) -> Attachment | None:
    """The attachment that a shard of this process uses, made if need be; None if the process reads for itself.

    ``ranks``: the number of all that read, replicas included; they share a run where the launcher has started as many.
    Warns if they could but for something that is missing, and of places that no rank has.
    """
    _warn_of_missing_ranks(ranks)
    if options.executor not in ("auto", "ray"):
        return None
    current = _Current.attachment
    if current is not None and ranks == current.world_size:
        _check_not_forked(current)
        return current
    if ranks == 1 or current is not None or _launched() != ranks:
        return None
    missing = _find_missing()
    if missing:
        warn_user(
            f"each of the {ranks} ranks reads and decodes every window for itself, {ranks} times the work "
            f"of one run that they share: {missing}"
        )
        return None
    return attach(stall_timeout=options.stall_timeout)


class FirstRead:
    """Compares the first read of a shard with those of other ranks, where torch.distributed is initialised by then.

    All ranks call `shard` equally often, so the number of the call tells which shards belong together.
    """

    # by number of ranks: a rank can have shards for itself
    _calls: ClassVar[Counter[int]] = Counter()

    def __init__(self, ranks: int, shares_run: bool) -> None:
        self._ranks, self._shares_run, self._pid = ranks, shares_run, os.getpid()
        self._number = FirstRead._calls[ranks]
        FirstRead._calls[ranks] += 1

    def __call__(self, program: Program, begin: Cursor, batching: Batching) -> None:
        """Raise a `PlanError` if another rank has begun to read otherwise."""
        # a process that was forked has no connection of its own to the store
        if self._ranks == 1 or not is_distributed() or os.getpid() != self._pid:
            return
        distributed = sys.modules["torch.distributed"]
        store = distributed.distributed_c10d._get_default_store()
        if store is not None and distributed.get_world_size() == self._ranks:
            prefix = f"windrow/{find_attempt()}/reads of {self._ranks}/{self._number}"
            rendezvous = Rendezvous(store, distributed.get_rank(), self._ranks, prefix)
            compare_first_read(rendezvous, program, begin, batching, self._shares_run)


def will_share(options: Options, shards: int) -> bool:
    """Whether `shard` without arguments would share a run among ``shards`` ranks."""
    if options.executor not in ("auto", "ray"):
        return False
    if _Current.attachment is not None:
        return _Current.attachment.world_size == shards
    return _launched() == shards > 1 and not _find_missing()


def _launched() -> int:
    """The number of ranks that a launcher has started; 0 without one."""
    try:
        return find_rank(None, None)[1]
    except PlanError:
        return 0


def _warn_of_missing_ranks(places: int) -> None:
    """Warn if more places are given than there are ranks: the rows of the others reach nobody."""
    started = _launched()
    if 0 < started < places:
        warn_user(
            f"shard() was told of {format_count(places, 'place')}, and the launcher has started "
            f"{format_count(started, 'rank')}: unless other processes read them, the rows of the others reach nobody. "
            "Leave out rank= and world_size=, or give the numbers of this job"
        )


def attached_place() -> tuple[int, int] | None:
    """(rank, world size) of this process if it is attached."""
    current = _Current.attachment
    return None if current is None else (current.rank, current.world_size)


def _check_not_forked(current: Attachment | None) -> None:
    if current is not None and current._pid != os.getpid():
        raise PlanError(
            "this process was forked from one that is attached to a run: call attach() and shard() before the fork, "
            "or in new processes only"
        )


def _find_missing() -> str:
    if importlib.util.find_spec("ray") is None:
        return 'pip install "windrow[ray]"'
    if not has_store():
        return "start the ranks with torchrun, or set MASTER_ADDR and MASTER_PORT, or initialise torch.distributed"
    return ""


def _find_place(current: Attachment | None) -> tuple[int, int]:
    if current is not None:
        return current.rank, current.world_size
    try:
        return find_rank(None, None)
    except PlanError:
        if has_launcher():
            raise
        return 0, 1


def _attach(rank: int, world_size: int, waiting: Waiting) -> Attachment:
    from windrow.pipeline.launch.find_supervisor import LOOPBACK, find_supervisor, start_head

    if world_size == 1:
        supervisor, lifeline = start_head(LOOPBACK)
        return Attachment(rank, world_size, None, supervisor, lifeline)
    store = find_store(rank, world_size, waiting)
    if store is None:
        raise PlanError(
            f"attach() as rank {rank} of {world_size}: ranks cannot find each other; {_find_missing()}"
        )
    rendezvous = Rendezvous(store, rank, world_size, f"windrow/{find_attempt()}/{_Current.attached_before}")
    _Current.attached_before += 1
    rendezvous, supervisor, lifeline = find_supervisor(rendezvous, waiting)
    return Attachment(rank, world_size, rendezvous, supervisor, lifeline)
