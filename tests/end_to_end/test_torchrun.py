"""Ranks of torchrun share one run: the order of split(), each block decoded once, nothing left behind."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import windrow
from tests.end_to_end.torchrun_jobs import find_leftovers, run_torchrun, start_torchrun, wait_for

SCRIPT = Path(__file__).with_name("torchrun_script.py")
ROWS = 2_003


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("rows")
    for part in range(4):
        rows = range(part * 501, min(ROWS, (part + 1) * 501))
        pq.write_table(pa.table({"x": rows}), folder / f"{part}.parquet", row_group_size=260)
    return str(folder)


def _split(data: str, n: int) -> tuple[list[Any], int]:
    """The streams of split(n), and the number of tasks that read them."""
    pipe = windrow.read_parquet(data).window(blocks_per_window=2).repeat(2).random_shuffle_each_window(seed=7)
    shards = pipe.options(executor="threads", progress=False).split(n, equal=True)
    streams = [
        [
            [x for batch in epoch.iter_batches(batch_size=50) for x in batch["x"].tolist()]
            for epoch in shard.iter_epochs()
        ]
        for shard in shards
    ]
    tasks = shards[0].stats().run.tasks
    for shard in shards:
        shard.close()
    return streams, tasks


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_ranks_share_one_run(data: str, ranks: int, tmp_path: Path) -> None:
    done = run_torchrun(SCRIPT, ranks, [data, str(tmp_path / "state"), "attached", "stream"])
    assert done.code == 0, done.output
    streams, tasks = _split(data, ranks)
    for rank, expected in enumerate(streams):
        attached, automatic = done.ranks[rank]
        assert attached == [expected, tasks, rank, ranks]
        assert automatic == [expected, tasks]
