"""What the host knows of a replica that has opened nothing, or has read up to some place."""

from __future__ import annotations

from windrow.pipeline.executors.replicas.replica_states import ReplicaState
from windrow.pipeline.plan.cursor import Place


def test_a_replica_has_left_what_lies_before_its_place() -> None:
    state = ReplicaState("a")
    assert not state.has_left(Place(0, 1))
    state.place = Place(0, 2)
    assert state.has_left(Place(0, 2))
    assert state.has_left(Place(0, 1))
    assert not state.has_left(Place(0, 3))
