"""The measured systems: one small adapter per file, each run in a separate process."""

from __future__ import annotations

from bench.peers.base import Peer, load_peer
from bench.peers.names import PEERS, PeerName

__all__ = ["PEERS", "Peer", "PeerName", "load_peer"]
