"""Ranks find a supervisor and agree on a run; here they are threads with torch's HashStore, without Ray."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch._C._distributed_c10d import HashStore

import windrow
from windrow.core.errors import PlanError, StallError, WindrowError
from windrow.pipeline.executors.base import Waiting
from windrow.pipeline.executors.ray.start_supervisor import SupervisorAddress
from windrow.pipeline.launch import find_supervisor as finding
from windrow.pipeline.launch.agreement import Agreement, Member, agree_on_run, compare_first_read
from windrow.pipeline.launch.find_supervisor import find_supervisor
from windrow.pipeline.launch.rendezvous import Rendezvous, find_store
from windrow.pipeline.plan.cursor import Cursor
from windrow.pipeline.plan.program import Program
from windrow.pipeline.tasks.sequence_packing import SequencePacking
from windrow.shuffle.order.batching import Batching

# nothing waits that long, except where a rank is absent
WAITING = Waiting(60.0, 120.0)
BRIEFLY = Waiting(0.1, 0.6)
BEGIN = Cursor()
SIZE = 3


def _run_ranks(call: Callable[[Rendezvous], Any]) -> list[Any]:
    """The return value or error of each rank."""
    store = HashStore()

    def run(rank: int) -> Any:
        try:
            return call(Rendezvous(store, rank, SIZE, "test"))
        except WindrowError as error:
            return error

    with ThreadPoolExecutor(SIZE) as pool:
        return list(pool.map(run, range(SIZE)))


def _program(**changes: Any) -> Program:
    job = windrow.range(9).repeat(2).random_shuffle_each_window(seed=3)._job()
    return Program(replace(job, **changes), SIZE, True, tuple(range(SIZE)))


def _agree(
    rendezvous: Rendezvous,
    program: Program,
    started: list[Any],
    place: tuple[int, int] | None = None,
    waiting: Waiting = WAITING,
    begin: Cursor = BEGIN,
) -> Agreement:
    def start(ips: list[list[str]]) -> tuple[str, Any]:
        started.append(ips)
        return "the run", ips

    shard, replica = place or (rendezvous.rank, 0)
    member = Member(shard, replica, f"{replica} of {shard}", f"10.0.0.{rendezvous.rank}")
    return agree_on_run(rendezvous, 0, program, member, begin, start, waiting)


def test_ranks_that_agree_share_one_run() -> None:
    started: list[Any] = []
    found = _run_ranks(lambda meeting: _agree(meeting, _program(), started))
    assert [run.name for run in found] == ["the run"] * SIZE
    assert started == [[["10.0.0.0"], ["10.0.0.1"], ["10.0.0.2"]]]


def test_replicas_share_one_run() -> None:
    started: list[Any] = []
    program = replace(_program(), shards=1, members=(0,), replicas=SIZE)
    found = _run_ranks(lambda meeting: _agree(meeting, program, started, (0, 2 - meeting.rank)))
    nodes = [["10.0.0.2", "10.0.0.1", "10.0.0.0"]]
    assert started == [nodes]
    assert [list(map(list, run.nodes)) for run in found] == [nodes] * SIZE
    assert [run.replicas for run in found] == [[["0 of 0", "1 of 0", "2 of 0"]]] * SIZE


def test_ranks_in_the_same_place_are_named() -> None:
    program = replace(_program(), shards=1, members=(0,), replicas=SIZE)
    for error in _run_ranks(lambda meeting: _agree(meeting, program, [], (0, meeting.rank // 2))):
        assert isinstance(error, PlanError)
        assert "ranks 0 and 1 both read shard 0 as replica 0 of 0" in str(error)


def test_a_run_that_has_too_few_ranks_is_an_error() -> None:
    program = replace(_program(), replicas=2)
    for error in _run_ranks(lambda meeting: _agree(meeting, program, [])):
        assert isinstance(error, PlanError)
        assert "3 ranks share a run of 3 shards with 2 replicas of each, which needs 6" in str(error)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 4}, r"shuffle +seed 3 +seed 4"),
        ({"epochs": 3}, r"epochs: rank 0 2, rank 2 3"),
        ({"source": windrow.range(8)._job().source}, r"rows +9 +8"),
    ],
)
def test_differing_pipelines_are_the_same_error_on_every_rank(changes: dict[str, Any], message: str) -> None:
    started: list[Any] = []

    def call(meeting: Rendezvous) -> Agreement:
        return _agree(meeting, _program(**changes) if meeting.rank == 2 else _program(), started)

    errors = _run_ranks(call)
    assert started == []
    for error in errors:
        assert isinstance(error, PlanError)
        assert "do not build the same pipeline" in str(error)
    assert all(re.search(message, str(error)) for error in errors)
    assert str(errors[1]) == str(errors[2]) == f"{errors[0]} (found by rank 0)"


def test_ranks_begin_at_the_same_row() -> None:
    def call(meeting: Rendezvous) -> Agreement:
        return _agree(meeting, _program(), [], begin=BEGIN if meeting.rank == 1 else Cursor(1, row=3_000))

    errors = _run_ranks(call)
    assert [type(error) for error in errors] == [PlanError] * SIZE
    assert all("state_dict: rank 0 of epoch 1, row 3,000, rank 1 None" in str(error) for error in errors)


def test_ranks_read_the_same_columns(tmp_path: Path) -> None:
    windrow.from_items([{"a": 1, "b": 2}]).write_parquet(tmp_path / "in")

    def call(meeting: Rendezvous) -> Agreement:
        ds = windrow.read_parquet(tmp_path / "in", columns=["a"] if meeting.rank == 2 else None)
        job = ds.repeat(2).random_shuffle_each_window(seed=3)._job()
        return _agree(meeting, Program(job, SIZE, True, tuple(range(SIZE))), [])

    errors = _run_ranks(call)
    assert [type(error) for error in errors] == [PlanError] * SIZE
    assert all("columns: rank 0 a, b, rank 2 a" in str(error) for error in errors)


@pytest.mark.filterwarnings("ignore:rank . waits in shard:RuntimeWarning")
def test_waiting_ranks_name_the_absent_rank() -> None:
    def call(meeting: Rendezvous) -> Any:
        return "absent" if meeting.rank == 1 else _agree(meeting, _program(), [], waiting=BRIEFLY)

    first, _, last = _run_ranks(call)
    for error in (first, last):
        assert isinstance(error, StallError)
        assert "waits in shard() for rank 1 of 3 to make its call number 1 of shard()" in str(error)


def test_error_of_rank_0_is_raised_on_every_rank() -> None:
    def call(meeting: Rendezvous) -> Any:
        def start(_: list[list[str]]) -> Any:
            raise PlanError("a window does not fit")

        return agree_on_run(meeting, 0, _program(), Member(meeting.rank, 0, "", ""), BEGIN, start, WAITING)

    errors = _run_ranks(call)
    assert [type(error) for error in errors] == [PlanError] * SIZE
    assert all("a window does not fit" in str(error) for error in errors)


class _Channel:
    def close(self) -> None:
        pass


def _address(**fields: Any) -> SupervisorAddress:
    given = {
        "host": "h",
        "port": 1,
        "token": "t",
        "address": "a",
        "ip": "",
        "auth_token": "",
        "adds_node": True,
    }
    return SupervisorAddress(**{**given, **fields})


def test_one_process_of_each_node_starts_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    nodes = {0: "x", 1: "y", 2: "y"}
    monkeypatch.setattr(finding, "start_head", lambda ip: (_address(), _Channel()))
    monkeypatch.setattr(finding, "own_ip", lambda size: "10.0.0.1")
    monkeypatch.setattr(finding, "ip_towards", lambda host, port: "10.0.0.2")
    monkeypatch.setattr(finding, "connect_to_supervisor", lambda supervisor: _Channel())

    def start(ip: str, *, head: SupervisorAddress) -> SupervisorAddress:
        started.append((ip, head.host))
        return _address(host="own")

    monkeypatch.setattr(finding, "start_supervisor", start)
    local = threading.local()
    monkeypatch.setattr(finding, "find_node", lambda: nodes[local.rank])

    def call(meeting: Rendezvous) -> str:
        local.rank = meeting.rank
        return find_supervisor(meeting, WAITING)[1].host

    assert _run_ranks(call) == ["h", "own", "own"]
    assert started == [("10.0.0.2", "h")]


def test_unusable_cluster_is_an_error_on_every_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(ip: str) -> Any:
        raise PlanError("rank could not use the Ray cluster: RuntimeError: Version mismatch")

    monkeypatch.setattr(finding, "start_head", fail)
    errors = _run_ranks(lambda meeting: find_supervisor(meeting, WAITING))
    assert [type(error) for error in errors] == [PlanError] * SIZE
    assert all("Version mismatch" in str(error) for error in errors)


def test_taken_port_is_an_error_on_every_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", str(server.getsockname()[1]))
        for rank, reason in enumerate(
            ["address already in use", "(has not answered for 2 s|socket has timed out)"]
        ):
            with pytest.raises(PlanError, match=rf"rank {rank} cannot .*{reason}.*--master-port"):
                find_store(rank, 2, BRIEFLY)


def test_lost_torch_store_is_a_stall_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone:
        def check(self, keys: list[str]) -> bool:
            raise RuntimeError("Connection reset by peer\nmore")

    meeting = Rendezvous(HashStore(), 1, SIZE, "test")
    monkeypatch.setattr(meeting, "_store", Gone())
    with pytest.raises(
        StallError, match=r"rank 1 has lost the store .*: Connection reset by peer\. The process"
    ):
        meeting.wait(["key"], BRIEFLY, lambda: "rank 1 waits")


@pytest.mark.parametrize(
    ("changes", "begin", "batching", "message"),
    [
        ({}, BEGIN, Batching(5), ""),
        ({"epochs": 3}, BEGIN, Batching(5), ""),
        ({"seed": 4}, BEGIN, Batching(5), r"shuffle +seed 3 +seed 4"),
        ({}, Cursor(1), Batching(5), "state_dict: rank 1 None, rank 2 of epoch 1, row 0"),
        (
            {},
            BEGIN,
            Batching(6),
            "batches: rank 1 batch_size=5, drop_last=False, rank 2 batch_size=6, drop_last=False",
        ),
        ({}, BEGIN, Batching(5, drop_last=True), "batches: .* rank 2 batch_size=5, drop_last=True"),
    ],
)
def test_a_rank_that_begins_otherwise_than_another_is_an_error(
    changes: dict[str, Any], begin: Cursor, batching: Batching, message: str
) -> None:
    """The one that begins later gets it, and nobody waits."""
    store = HashStore()
    first, second, third = (Rendezvous(store, rank, SIZE, "test") for rank in (1, 2, 0))
    compare_first_read(first, _program(), BEGIN, Batching(5), False)
    if message:
        with pytest.raises(PlanError, match=message):
            compare_first_read(second, _program(**changes), begin, batching, False)
    else:
        compare_first_read(second, _program(**changes), begin, batching, False)
    compare_first_read(third, _program(), BEGIN, Batching(5), False)
    # where ranks share a run, its coordinator compares batches
    shared = Rendezvous(store, 1, SIZE, "shared"), Rendezvous(store, 2, SIZE, "shared")
    for meeting, rows in zip(shared, (5, 6), strict=True):
        compare_first_read(meeting, _program(), BEGIN, Batching(rows), True)


def test_ranks_that_have_lost_their_store_read_on(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone:
        def compare_set(self, *_: str) -> bytes:
            raise RuntimeError("Connection reset by peer")

    meeting = Rendezvous(HashStore(), 1, SIZE, "test")
    monkeypatch.setattr(meeting, "_store", Gone())
    compare_first_read(meeting, _program(), BEGIN, Batching(5), False)


def test_ranks_of_a_mixture_measure_the_same_column() -> None:
    def call(meeting: Rendezvous) -> Agreement:
        source = windrow.range(9).repeat(2).random_shuffle_each_window(seed=3)
        column = "id" if meeting.rank == 1 else None
        pipe = windrow.mixture({"a": source}, {"a": 1}, seed=1, length_column=column)
        return _agree(meeting, Program(pipe._job(), SIZE, True, tuple(range(SIZE))), [])

    for error in _run_ranks(call):
        assert isinstance(error, PlanError)
        assert "length_column: rank 0 None, rank 1 'id'" in str(error)


def test_packing_is_named_among_the_transforms_of_ranks_that_differ() -> None:
    packing = SequencePacking(4, "id")

    def call(meeting: Rendezvous) -> Agreement:
        changes = {"after": _program_after()} if meeting.rank == 2 else {}
        return _agree(meeting, _program(packing=packing, **changes), [])

    for error in _run_ranks(call):
        assert isinstance(error, PlanError)
        assert f"transforms: rank 0 shuffle, {packing}, rank 2 shuffle, {packing}, map_batches" in str(error)


def _program_after() -> Any:
    pipe = windrow.range(9).repeat(2).random_shuffle_each_window(seed=3)
    return pipe.map_batches(lambda batch: batch)._job().after


def test_a_rank_tries_again_to_reach_a_supervisor_that_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[Any] = []

    def connect(supervisor: SupervisorAddress) -> _Channel:
        if len(refused) < 2:
            refused.append(supervisor)
            raise StallError("it does not answer")
        return _Channel()

    monkeypatch.setattr(finding, "start_head", lambda ip: (_address(adds_node=False), _Channel()))
    monkeypatch.setattr(finding, "own_ip", lambda size: "10.0.0.1")
    monkeypatch.setattr(finding, "_RETRY_SECONDS", 0.01)
    monkeypatch.setattr(finding, "connect_to_supervisor", connect)
    found = _run_ranks(lambda meeting: find_supervisor(meeting, WAITING)[1].host)
    assert found == ["h"] * SIZE
    assert len(refused) == 2
    # but not forever
    refused.clear()
    monkeypatch.setattr(finding, "_CONNECT_SECONDS", -1.0)
    first, *others = _run_ranks(lambda meeting: find_supervisor(meeting, WAITING)[1].host)
    assert first == "h"
    assert [str(error) for error in others] == ["it does not answer"] * 2
