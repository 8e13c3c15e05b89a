"""What an adapter is."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Protocol, cast

from bench.account import Account
from bench.peers.names import PEERS
from bench.request import Request
from bench.trainer import Progress, TrainerResult

__all__ = ["Peer", "load_peer"]


class Peer(Protocol):
    """One system. Made with a request and a progress callback; used once, in its own process."""

    def __init__(self, request: Request, progress: Progress) -> None: ...

    def prepare(self) -> None:
        """Import, start sessions and actors; the process tree's idle memory is measured after this."""

    def run(self) -> Sequence[TrainerResult]:
        """Deliver every epoch; the clock starts with this call."""
        ...

    def account(self) -> Account:
        """What the system itself tells about its run; asked once, before ``close``."""
        ...

    def close(self) -> None:
        """Stop whatever ``prepare`` started."""


def load_peer(request: Request, progress: Progress) -> Peer:
    """Import and make the adapter that a request names."""
    module, _, name = PEERS[request.system].adapter.partition(":")
    return cast(Peer, getattr(importlib.import_module(module), name)(request, progress))
