"""Where replicas read: a node whose replicas have all closed unread is not waited for, also after a restart."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.end_to_end.reading import eventually
from tests.laws.cases import Case
from tests.laws.ray_double import DoubledRayExecutor, doubled_ray
from windrow.core.errors import StallError
from windrow.pipeline.executors.ray.cluster import ClusterAddress, this_node
from windrow.pipeline.executors.ray.coordinator import Coordinator
from windrow.pipeline.executors.ray.executor import RaySession, SharedSession
from windrow.pipeline.executors.ray.replica_hosts import RayReplicaSession
from windrow.pipeline.executors.ray.replica_places import NOWHERE, HostMeeting, ReplicaPlaces
from windrow.pipeline.plan.cursor import Cursor
from windrow.pipeline.plan.program import Program
from windrow.shuffle.order.batching import Batching


@pytest.fixture
def executor() -> Iterator[DoubledRayExecutor]:
    with doubled_ray() as found:
        yield found


@pytest.mark.parametrize("opens_first", [True, False])
def test_the_coordinator_closes_a_node_whose_replicas_close_unread(
    executor: DoubledRayExecutor, opens_first: bool
) -> None:
    case = Case((10,) * 4, shards=1)
    program, here = Program(case.job("ray"), 1, False, (0,), replicas=3), this_node()
    nodes = ((here, "other"),)
    actor = executor.double.start(lambda: Coordinator(program, executor.resources(), nodes))
    session = RaySession(actor, program, nodes=nodes)
    client: Any = session.shard_client(0, 5, case.seed)

    def doing(number: int) -> str:
        return str(executor.double.get(actor.diagnose.remote(number))[0])

    def open_epoch() -> None:
        client.open_epoch(Cursor(0), Batching(5))

    if opens_first:
        open_epoch()
    assert session.meet_replicas(0, here, [0]) == {0: here}
    session.meet_replicas(0, NOWHERE, [1])
    if opens_first:
        assert "at epoch 0, window 0" in doing(1)
    assert session.meet_replicas(0, NOWHERE, [2]) == {0: here, 1: NOWHERE, 2: NOWHERE}
    if not opens_first:
        open_epoch()
    assert eventually(lambda: doing(1) == "shard 1 has been closed")
    assert doing(0) != "shard 0 has been closed"
    client.close()
    assert eventually(lambda: doing(0) == "shard 0 has been closed")


def test_replicas_in_processes_outside_ray_connect_to_the_cluster_of_the_run() -> None:
    """Ray would start another cluster for a process that asks it for its node."""
    program, cluster = (
        Program(Case((10,)).job("ray"), 1, False, (0,), replicas=2),
        ClusterAddress("10.0.0.1:6379"),
    )
    shared = SharedSession(cluster, "run", program, ((None,),))
    here: Any = SimpleNamespace(for_processes=lambda: shared)
    session = RayReplicaSession(here, program, cast(Any, None), "run", [["a", "b"]], 1)
    found = cast(RayReplicaSession, session.for_processes())
    assert (found.cluster, found.session, found.replica) == (cluster, shared, 1)


def test_which_clients_have_no_reader() -> None:
    # shards 0 and 1, with three replicas each; the nodes of the latter are not known
    places = ReplicaPlaces((("a", "b"), (None,)), replicas=3)
    places.meet(0, "a", [0])
    places.meet(0, NOWHERE, [1])
    assert places.take_unread(0) == []
    # it came late, and closes unread
    places.meet(0, NOWHERE, [2])
    assert places.take_unread(0) == [2]
    assert places.take_unread(0) == []
    # it returns, and closes again
    places.meet(0, "b", [2])
    assert places.take_unread(0) == []
    places.meet(0, NOWHERE, [2])
    assert places.take_unread(0) == [2]
    places.meet(1, "c", [0, 1])
    places.meet(1, NOWHERE, [2])
    assert places.take_unread(1) == [], "a node that nobody named takes the place of the unknown one"
    places.meet(1, NOWHERE, [0, 1])
    assert places.take_unread(1) == [1]


def test_a_shard_that_moved_to_other_nodes_keeps_its_clients() -> None:
    """Closing them would leave the shard without a reader until the one on the other node opens its epoch."""
    places = ReplicaPlaces((("a", "b"),), replicas=2)
    places.meet(0, "c", [0])
    places.meet(0, NOWHERE, [1])
    assert places.take_unread(0) == []
    places.meet(0, NOWHERE, [0])
    assert places.take_unread(0) == [0, 1]


class _Session:
    """Stands for a coordinator that can restart."""

    def __init__(self) -> None:
        self.places: dict[int, str] = {}
        self.answers = True

    def meet_replicas(self, shard: int, node: str, replicas: Sequence[int]) -> dict[int, str]:
        if not self.answers:
            raise StallError("the coordinator restarts")
        self.places.update(dict.fromkeys(replicas, node))
        return dict(self.places)


class _Host:
    """Stands for a host; replicas 0 and 1 read here."""

    def __init__(self) -> None:
        self.connected, self.closed, self.was_opened = [0, 1], list[int](), True
        self.elsewhere: set[int] = set()
        self.awaits_replicas = False

    def note_elsewhere(self, replicas: Collection[int]) -> None:
        self.elsewhere |= {*replicas}


def test_hosts_tell_a_restarted_coordinator_what_it_knew() -> None:
    session, host = _Session(), _Host()
    found = HostMeeting(session, cast(Any, host), 0, "a")
    found.meet()
    session.meet_replicas(0, NOWHERE, [2])
    session.meet_replicas(0, "b", [3])
    found.meet()
    assert host.elsewhere == {2, 3}
    session.places.clear()
    session.answers = False
    found.meet()
    session.answers = True
    found.meet()
    # the host of replica 3 tells of it
    assert session.places == {0: "a", 1: "a", 2: NOWHERE}


def test_a_replica_that_closes_before_the_first_meeting_is_told() -> None:
    """Hosts on other nodes wait for one that they have not heard of."""
    session, host = _Session(), _Host()
    found = HostMeeting(session, cast(Any, host), 0, "a")
    assert found.is_due
    host.connected, host.closed = [1], [0]
    found.meet()
    assert session.places == {0: "a", 1: "a"}
    assert not found.is_due
    # a replica that connects, and closes, after a meeting
    host.closed = [0, 2]
    assert found.is_due
    found.meet()
    assert session.places == {0: "a", 1: "a", 2: "a"}
    assert not found.is_due
    # one that begins again on another node stays there
    session.meet_replicas(0, "b", [0])
    host.awaits_replicas = True
    assert found.is_due
    found.meet()
    assert session.places == {0: "b", 1: "a", 2: "a"}
    session.places.clear()
    found.meet()
    assert session.places == {1: "a", 2: "a"}, "the host on the other node tells of it"


def test_a_host_that_never_opened_tells_that_its_replicas_have_closed() -> None:
    session, host = _Session(), _Host()
    found = HostMeeting(session, cast(Any, host), 0, "a")
    found.meet()
    host.connected, host.closed = [], [0, 1]
    # another process reads as this replica on another node
    session.meet_replicas(0, "b", [1])
    found.meet()
    found.end()
    assert session.places == {0: "a", 1: "b"}, "its client has closed"
    host.was_opened = False
    found.end()
    assert session.places == {0: NOWHERE, 1: "b"}
