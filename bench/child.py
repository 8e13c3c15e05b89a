"""Runs one system in a separate process, so that no memory, threads or Ray session carry over.

The protocol is JSON lines. The request and the sums arrive on standard input, followed by "go" after the
idle memory was measured. Events are written to the given file descriptor.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any

from bench.peers import PEERS, load_peer
from bench.request import Request
from bench.results import SystemResult, merge_trainers

__all__ = ["main"]


class _Events:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def send(self, event: str, **fields: Any) -> None:
        data = (json.dumps({"event": event, **fields}) + "\n").encode()
        while data:
            data = data[os.write(self._descriptor, data) :]

    def progress(self, epoch: int, rows: int) -> None:
        self.send("progress", epoch=epoch, rows=rows)


def main(descriptor: int) -> None:
    """Run the request that is read from standard input."""
    os.set_inheritable(descriptor, False)  # the pipe closes with this process, even if its children live on
    order = json.loads(sys.stdin.readline())
    request, events = Request.from_json(order["request"]), _Events(descriptor)
    cache = request.cache if request.system.startswith("windrow") else None
    result = SystemResult(request.system, request.trainers, cache=cache)
    try:
        _measure(request, order["sums"], events, result)
    except KeyboardInterrupt:
        result.error = "interrupted"
    except Exception as error:
        traceback.print_exc()
        result.error = _shorten(error)
    events.send("result", result=result.to_dict())


def _measure(request: Request, sums: dict[str, Any], events: _Events, result: SystemResult) -> None:
    peer = load_peer(request, events.progress)
    try:
        peer.prepare()
        events.send("idle")
        sys.stdin.readline()
        trainers = peer.run()
        events.send("done")
        expected = {name: (int(c), int(s), int(q)) for name, (c, s, q) in sums.items()}
        result.epochs = merge_trainers(request, expected, trainers, PEERS[request.system].delivers)
        details = peer.details()
        result.spans = [*(span for trainer in trainers for span in trainer.spans), *details.spans]
        result.estimate, result.store = details.estimate, details.store
    finally:
        peer.close()


def _shorten(error: Exception) -> str:
    """The error on one line: the last line of a remote traceback; the log has the rest."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip(' "')]
    if len(lines) == 1:
        return f"{type(error).__name__}: {lines[0][:300]}"
    return lines[-1][:300] if lines else type(error).__name__


if __name__ == "__main__":
    main(int(sys.argv[1]))
