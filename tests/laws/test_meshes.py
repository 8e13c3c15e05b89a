"""Laws of replicas on threads: each gets its shard's batches, whatever the others do, and any mesh resumes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given

from tests.laws.examples import examples
from tests.laws.replica_cases import (
    FAULTY_CASES,
    MESH_CASES,
    SELECTING_CASES,
    MeshCase,
    assert_same_batches,
    read_mesh,
)
from tests.narrowing import narrowing_hosts
from windrow.pipeline.executors.threads import ThreadsExecutor

pytestmark = pytest.mark.usefixtures("small_runs", "leaves_no_thread")


@examples(80)
@given(MESH_CASES)
def test_replicas_get_the_batches_of_their_shard(mesh: MeshCase) -> None:
    assert_same_batches(mesh, read_mesh(mesh, ThreadsExecutor(2)))


@examples(80)
@given(FAULTY_CASES)
def test_replicas_that_die_or_leave_continue(mesh: MeshCase) -> None:
    assert_same_batches(mesh, read_mesh(mesh, ThreadsExecutor(2)))


@pytest.fixture(scope="module")
def hosts_narrow() -> Iterator[None]:
    """Hosts that get only what their replicas want, as from another node."""
    with narrowing_hosts():
        yield


@pytest.mark.usefixtures("hosts_narrow")
@examples(80)
@given(SELECTING_CASES)
def test_replicas_with_columns_of_their_own(mesh: MeshCase) -> None:
    assert_same_batches(mesh, read_mesh(mesh, ThreadsExecutor(2)))
