"""Ranks of torchrun on emulated nodes get the order of one process, even while a link is down."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.cli import main
from bench.netns.network import Link, Network, open_network, why_not

_CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], 9), timeout=float(sys.argv[2]))
except OSError as error:
    print(type(error).__name__)
"""

needs_namespaces = pytest.mark.skipif(bool(why_not()), reason=why_not() or "network namespaces")


def test_command_without_root_prints_why_it_does_not_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert main(["netns"]) == 0
    assert capsys.readouterr().out == "not run: network namespaces need root\n"


def _connect(network: Network, seconds: int) -> str:
    """Return the error of connecting from the first node to the second."""
    command = network.command(0, [sys.executable, "-c", _CONNECT, network.addresses[1], str(seconds)])
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@needs_namespaces
def test_links_are_cut_limited_and_removed() -> None:
    with open_network(2, Link(1e6)) as network:
        tries = []
        for up in (True, False, True):
            network.set_up(1, up=up)
            # a link that is up again is found with a later packet
            tries.append(_connect(network, 20 if up else 1))
        # nothing listens: a reachable node refuses the connection, an unreachable one does not answer
        assert tries == ["ConnectionRefusedError", "TimeoutError", "ConnectionRefusedError"]
        shaped = subprocess.run(
            network.command(1, ["tc", "qdisc", "show", "dev", "eth0"]),
            capture_output=True,
            text=True,
            check=True,
        )
        assert "rate 8Mbit" in shaped.stdout
        prefix = network.prefix
    names = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    assert prefix not in names.stdout


@needs_namespaces
@pytest.mark.cluster
@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_order_is_that_of_one_process_while_a_link_is_down(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["netns", "--short", "--folder", str(tmp_path)]) == 0
    output = capsys.readouterr().out
    assert "a link is down for 3 s" in output
    assert "differs" not in output
