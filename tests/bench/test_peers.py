from __future__ import annotations

from dataclasses import replace

import pytest

from bench.peers import PEERS, load_peer
from tests.bench.test_results import REQUEST


@pytest.mark.parametrize("system", PEERS)
def test_every_system_has_an_adapter(system: str) -> None:
    peer = load_peer(replace(REQUEST, system=system), lambda *_: None)
    assert all(callable(getattr(peer, name)) for name in ("prepare", "run", "account", "close"))
