"""The adapter interface."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Protocol, cast

from bench.peers.names import PEERS
from bench.request import Request
from bench.run_details import RunDetails
from bench.trainer import Progress, TrainerResult

__all__ = ["Peer", "load_peer"]


class Peer(Protocol):
    """Adapter of one system; created with a request and a progress callback, and used once in its own process."""

    def __init__(self, request: Request, progress: Progress) -> None: ...

    def prepare(self) -> None:
        """Import libraries, start sessions and actors; the idle memory is measured after this."""

    def run(self) -> Sequence[TrainerResult]:
        """Deliver every epoch; the measured time starts with this call."""
        ...

    def details(self) -> RunDetails:
        """What the system itself reports about its run; called once, before ``close``."""
        ...

    def close(self) -> None:
        """Stop everything that ``prepare`` started."""


def load_peer(request: Request, progress: Progress) -> Peer:
    """Import and create the adapter that a request names."""
    module, _, name = PEERS[request.system].adapter.partition(":")
    return cast(Peer, getattr(importlib.import_module(module), name)(request, progress))
