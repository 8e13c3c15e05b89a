from __future__ import annotations

from dataclasses import replace

import pytest

from bench.peers.base import load_peer
from bench.peers.limits import FreshMemory
from bench.peers.names import PEERS
from tests.bench.training.test_results import REQUEST


@pytest.mark.parametrize("system", PEERS)
def test_every_system_has_an_adapter(system: str) -> None:
    peer = load_peer(replace(REQUEST, system=system))
    assert all(callable(getattr(peer, name)) for name in ("prepare", "run", "read_store", "close"))


def test_memory_of_two_windows_is_touched() -> None:
    request = replace(REQUEST, decoded_bytes=36 * 2**20)
    peer = FreshMemory(request)
    peer.prepare()
    (result,) = peer.run()
    assert [(epoch.rows, epoch.batches) for epoch in result.epochs] == [(request.rows, 5)] * request.epochs
