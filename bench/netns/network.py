"""Network namespaces joined by a bridge, and the conditions of their links.

Everything lies in namespaces of its own, which `open_network` removes: no address, route or device of the
machine itself changes.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

_DEVICE = "eth0"
# jumbo frames, as networks of clusters have them: headers and acknowledgements are 1 % of the bytes
_MTU = 9000
# what a switch's port holds
_QUEUE_BYTES = 512_000
# classic BPF: load a random word, and drop the packet (2) if it is below a threshold
_LOSS = "4,32 0 0 4294963256,53 1 0 {below},6 0 0 2,6 0 0 0"


@dataclass(frozen=True)
class Link:
    """One node's link, in each direction: bytes per second, delay in seconds, share of packets lost."""

    bytes_per_second: float
    delay_seconds: float = 0.0
    loss: float = 0.0


def why_not() -> str:
    """Why namespaces cannot be made here; empty if they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [name for name in ("ip", "tc") if shutil.which(name) is None]
    if missing:
        return f"{' and '.join(missing)} (iproute2) not found"
    name = f"wn{uuid.uuid4().hex[:6]}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode:
        return made.stderr.strip()
    _run("ip", "netns", "del", name)
    return ""


class Network:
    """Nodes, each a namespace with one device, behind one bridge."""

    def __init__(self, prefix: str, nodes: int) -> None:
        self.prefix = prefix
        self.addresses = [f"10.77.0.{node + 1}" for node in range(nodes)]
        self.has_netem = False

    def command(self, node: int, command: Sequence[str]) -> list[str]:
        return ["ip", "netns", "exec", self._node(node), *command]

    def set_link(self, node: int, link: Link) -> None:
        for namespace, device in ((self._node(node), _DEVICE), (self._switch, f"v{node}")):
            self._set_device(namespace, device, link)

    def set_up(self, node: int, *, up: bool) -> None:
        _run("ip", "-n", self._switch, "link", "set", f"v{node}", "up" if up else "down")

    def _set_device(self, namespace: str, device: str, link: Link) -> None:
        tc = ("ip", "netns", "exec", namespace, "tc")
        bits = f"{link.bytes_per_second * 8:.0f}bit"
        if self.has_netem:
            delay, loss = f"{link.delay_seconds * 1e6:.0f}us", f"{link.loss * 100:g}%"
            queue = ("netem", "rate", bits, "delay", delay, "loss", loss)
            _run(*tc, "qdisc", "replace", "dev", device, "root", *queue)
            return
        burst = max(16_000, int(link.bytes_per_second / 250))
        queue = ("tbf", "rate", bits, "burst", str(burst), "limit", str(_QUEUE_BYTES))
        _run(*tc, "qdisc", "replace", "dev", device, "root", *queue)
        subprocess.run([*tc, "filter", "del", "dev", device, "egress"], capture_output=True, check=False)
        if link.loss:
            program = _LOSS.format(below=int(link.loss * 2**32))
            _run(*tc, "filter", "add", "dev", device, "egress", "bpf", "da", "bytecode", program)

    def open(self, link: Link) -> None:
        _run("ip", "netns", "add", self._switch)
        _run("ip", "-n", self._switch, "link", "add", "bridge0", "type", "bridge")
        _run("ip", "-n", self._switch, "link", "set", "bridge0", "up")
        for node, address in enumerate(self.addresses):
            namespace, port = self._node(node), f"v{node}"
            _run("ip", "netns", "add", namespace)
            pair = ("type", "veth", "peer", "name", port, "netns", self._switch)
            _run("ip", "-n", namespace, "link", "add", _DEVICE, *pair)
            _run("ip", "-n", namespace, "addr", "add", f"{address}/24", "dev", _DEVICE)
            # packets of the size of a real network's, so that the loss of one is not that of many
            for where, device in ((namespace, _DEVICE), (self._switch, port)):
                _run("ip", "-n", where, "link", "set", device, "mtu", str(_MTU), "gso_max_segs", "1")
                _run("ip", "-n", where, "link", "set", device, "up")
            _run("ip", "-n", namespace, "link", "set", "lo", "up")
            _run("ip", "-n", self._switch, "link", "set", port, "master", "bridge0")
            if not node:
                tried = ("tc", "qdisc", "replace", "dev", _DEVICE, "root", "netem", "delay", "1us")
                probe = subprocess.run(self.command(0, tried), capture_output=True, check=False)
                self.has_netem = probe.returncode == 0
            if not self.has_netem:
                for where, device in ((namespace, _DEVICE), (self._switch, port)):
                    _run("ip", "netns", "exec", where, "tc", "qdisc", "add", "dev", device, "clsact")
            self.set_link(node, link)

    def close(self) -> None:
        """End what still runs on the nodes, and remove the namespaces and with them all devices."""
        nodes = [self._node(node) for node in range(len(self.addresses))]
        for name in nodes:
            # Supervisors outlive their ranks by some seconds. One whose link is gone would wait for minutes for others.
            listed = subprocess.run(
                ["ip", "netns", "pids", name], capture_output=True, text=True, check=False
            )
            for process in listed.stdout.split():
                with suppress(ProcessLookupError):
                    os.kill(int(process), signal.SIGTERM)
        for name in (self._switch, *nodes):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)

    def _node(self, node: int) -> str:
        return f"{self.prefix}-{node}"

    @property
    def _switch(self) -> str:
        return f"{self.prefix}-switch"


@contextmanager
def open_network(nodes: int, link: Link) -> Iterator[Network]:
    network = Network(f"wn{uuid.uuid4().hex[:6]}", nodes)
    try:
        network.open(link)
        yield network
    finally:
        network.close()


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"{' '.join(command)}: {done.stderr.strip()}")
