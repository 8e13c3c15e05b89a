"""Web servers of this process."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


@contextmanager
def serving(handler: Callable[..., Any]) -> Iterator[int]:
    """Answer requests with a handler inside the with block; yields the port."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield server.server_port
        server.shutdown()


@contextmanager
def serving_folder(
    folder: Path, kind: type[SimpleHTTPRequestHandler] = SimpleHTTPRequestHandler
) -> Iterator[str]:
    """Serve the files of a folder without logging; yields its URL."""
    silent = type("Silent", (kind,), {"log_message": lambda *_: None})
    with serving(functools.partial(silent, directory=str(folder))) as port:
        yield f"http://127.0.0.1:{port}/"
