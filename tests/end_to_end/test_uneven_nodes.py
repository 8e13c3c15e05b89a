"""A mesh over nodes with different numbers of ranks, so that replicas of one shard are on both: two torchruns here."""

from __future__ import annotations

import socket
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.end_to_end.torchrun_jobs import find_leftovers, start_torchrun, wait_for
from tests.end_to_end.uneven_nodes_script import columns_of, make_pipe, read

pytestmark = [pytest.mark.timeout(400), pytest.mark.nightly]
SCRIPT = Path(__file__).with_name("uneven_nodes_script.py")
ROWS, BLOCK_ROWS, EPOCHS = 600, 50, 2


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("rows") / "rows.parquet"
    rows = np.arange(ROWS)
    pq.write_table(pa.table({"x": rows, "y": 3 * rows}), path, row_group_size=BLOCK_ROWS)
    return str(path)


def _run(data: str, ranks: tuple[int, ...], address: str, action: str) -> dict[int, Any]:
    """What each rank reports of a job on nodes with these numbers of ranks."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"127.0.0.1:{server.getsockname()[1]}"
    found: dict[int, Any] = {}
    with tempfile.TemporaryDirectory(prefix="wt-", dir="/tmp") as tmp:
        jobs = [
            start_torchrun(
                SCRIPT,
                count,
                [data, address, action],
                options=[
                    f"--nnodes={len(ranks)}",
                    f"--node-rank={node}",
                    "--rdzv-backend=static",
                    f"--rdzv-endpoint={endpoint}",
                ],
                tmp=tmp,
            )
            for node, count in enumerate(ranks)
        ]
        try:
            for job in jobs:
                done = wait_for(job)
                assert done.code == 0, done.output
                found |= {rank: value for rank, (value,) in done.ranks.items()}
        finally:
            for job in jobs:
                if job.poll() is None:
                    job.terminate()
                    job.communicate(timeout=60)
        assert find_leftovers(tmp) == []
    return found


@pytest.mark.parametrize(
    ("ranks", "address", "action"),
    [
        ((3, 1), "own", "reads"),
        ((1, 3), "own", "reads"),
        # two agents on one machine, whose nodes have one address
        ((3, 1), "same", "reads"),
        ((3, 1), "own", "closes"),
    ],
)
def test_a_mesh_on_uneven_nodes(data: str, ranks: tuple[int, int], address: str, action: str) -> None:
    shards = make_pipe(data, "threads").split(2, equal=True)
    expected = []
    for shard in shards:
        # each for itself: they need not be read at once
        with shard:
            expected.append(read(shard, columns_of(0)))
    found = _run(data, ranks, address, action)
    assert [found[rank][0] for rank in range(4)] == [[0, 0], [0, 1], [1, 0], [1, 1]]
    node_of = [node for node, count in enumerate(ranks) for _ in range(count)]
    nodes: dict[int, set[str]] = {0: set(), 1: set()}
    for rank, ((data_rank, tensor_rank), batches, tasks, node) in sorted(found.items()):
        if action == "closes" and node_of[rank] == 1:
            assert batches == []
            continue
        nodes[node_of[rank]].add(node)
        assert batches == [step[: 1 + len(columns_of(tensor_rank))] for step in expected[data_rank]]
        if action == "reads":
            # each window is read once in the whole job
            assert tasks == EPOCHS * (ROWS // BLOCK_ROWS) // 2
    if address == "own" and action == "reads":
        assert [len(each) for each in nodes.values()] == [1, 1]
        assert nodes[0] != nodes[1]
