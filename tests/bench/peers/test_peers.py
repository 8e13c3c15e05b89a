from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench.peers.base import load_peer
from bench.peers.limits import FreshMemory
from bench.peers.names import PEERS
from tests.bench.training.test_results import REQUEST


@pytest.mark.parametrize("system", PEERS)
def test_every_system_has_an_adapter(system: str) -> None:
    peer = load_peer(replace(REQUEST, system=system), lambda *_: None)
    assert all(callable(getattr(peer, name)) for name in ("prepare", "run", "details", "close"))


def test_memory_of_two_windows_is_touched(tmp_path: Path) -> None:
    rows = 3 * 2**20
    table = pa.table(
        {"key": np.arange(rows), "other": np.zeros(rows, np.float32), "left out": np.zeros(rows)}
    )
    pq.write_table(table, tmp_path / "a.parquet")
    request = replace(REQUEST, paths=(str(tmp_path / "a.parquet"),), columns=("key", "other"), rows=rows)
    peer = FreshMemory(request, lambda *_: None)
    peer.prepare()
    (result,) = peer.run()
    blocks = -(-2 * 12 * rows // (16 * 2**20))
    assert [(epoch.rows, epoch.batches) for epoch in result.epochs] == [(rows, blocks)] * request.epochs
