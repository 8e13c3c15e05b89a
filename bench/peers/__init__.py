"""The systems that are measured: one small adapter a file, each run in its own process."""

from __future__ import annotations

from bench.peers.base import Peer, load_peer
from bench.peers.names import PEERS, PeerName

__all__ = ["PEERS", "Peer", "PeerName", "load_peer"]
