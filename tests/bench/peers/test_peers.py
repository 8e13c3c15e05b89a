from __future__ import annotations

from dataclasses import replace

import pytest

from bench.peers.base import load_peer
from bench.peers.names import PEERS
from tests.bench.training.test_results import REQUEST


@pytest.mark.parametrize("system", PEERS)
def test_every_system_has_an_adapter(system: str) -> None:
    peer = load_peer(replace(REQUEST, system=system))
    assert all(callable(getattr(peer, name)) for name in ("prepare", "run", "read_store", "close"))
