"""Runs systems in turns, each in a process of its own, so that no memory, threads or Ray session carry over.

This module is also what runs there: it answers a request once the system is idle, and the next one with the result.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.peers.base import Peer, load_peer
from bench.peers.names import PEERS
from bench.system.console import ProgressLine
from bench.system.processes import MemorySampler, SystemProcess
from bench.throughput.options import BenchConfig, make_request
from bench.training.facts import Facts
from bench.training.request import Request
from bench.training.results import SystemResult, merge_trainers
from bench.training.trainer import remove_agreement


def run_rounds(config: BenchConfig, facts: Facts) -> list[SystemResult]:
    """Run every system once per round; the rounds of a system are merged into one result."""
    line, results = ProgressLine(), dict[str, SystemResult]()
    for _ in range(config.rounds):
        for system in config.systems:
            line.start(PEERS[system].title)
            request = make_request(config, system, facts)
            log = config.folder / "logs" / f"{system}.log"
            result = run_system(request, log=log, timeout_seconds=config.timeout_seconds)
            if request.rendezvous is not None:
                remove_agreement(request.rendezvous)
            line.finish("FAILED" if result.error else _describe_epochs(result))
            results[system] = _join(results[system], result) if system in results else result
    return list(results.values())


def _join(one: SystemResult, other: SystemResult) -> SystemResult:
    """Merge the epochs of two rounds; first epochs stay marked as such."""
    if one.error is not None or other.error is not None:
        return one if one.error is not None else other
    peaks = [peak for peak in (one.peak_bytes, other.peak_bytes) if peak is not None]
    epochs = [*one.epochs, *other.epochs]
    return replace(one, epochs=epochs, peak_bytes=max(peaks, default=None), store=other.store)


def _describe_epochs(result: SystemResult) -> str:
    seconds = " ".join(f"{epoch.seconds:.2f}" for epoch in result.epochs)
    losses = [epoch.losses for epoch in result.epochs if epoch.losses is not None]
    text = f"{seconds} s an epoch"
    if losses:
        text += f"; loss {losses[0][0]:.3f} -> " + " -> ".join(f"{last:.3f}" for _, last in losses)
    return text


def run_system(request: Request, *, log: Path, timeout_seconds: float) -> SystemResult:
    """Measure one system; a failure or a timeout is a result with ``error`` set."""
    python = request.python or sys.executable
    with (
        SystemProcess(__name__, log=log, timeout_seconds=timeout_seconds, python=python) as process,
        MemorySampler(process.tree) as sampler,
    ):
        answer = process.run(request)
        idle_bytes = sampler.measure()
        if "error" not in answer:
            answer = process.run(None)
    if "error" in answer:
        error = f"{answer['error']}; its output is in {log}"
        return SystemResult(request.system, request.trainers, error=error)
    result: SystemResult = answer["result"]
    peaks = [sampler.peak(epoch.start, epoch.end) for epoch in result.epochs]
    result.peak_bytes = max((max(0, peak - idle_bytes) for peak in peaks if peak is not None), default=None)
    return result


def start() -> Callable[[Request | None], dict[str, Any]]:
    idle: list[tuple[Request, Peer]] = []

    def answer(request: Request | None) -> dict[str, Any]:
        if request is None:
            return {"result": _measure(*idle.pop())}
        peer = load_peer(request)
        idle.append((request, peer))
        try:
            peer.prepare()
        except BaseException:
            peer.close()
            raise
        return {}

    return answer


def _measure(request: Request, peer: Peer) -> SystemResult:
    try:
        trainers = peer.run()
        return SystemResult(
            request.system,
            request.trainers,
            merge_trainers(request, trainers, PEERS[request.system].delivers),
            estimate=peer.estimate,
            store=peer.read_store(),
            cache=request.cache if request.system.startswith("windrow") else None,
        )
    finally:
        peer.close()
