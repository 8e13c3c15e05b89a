"""Runs the systems one after another, in one or more rounds."""

from __future__ import annotations

from collections.abc import Sequence

from bench.agreement import remove_agreement
from bench.config import BenchConfig, make_request
from bench.facts import Facts
from bench.launch import run_system
from bench.peers import PEERS
from bench.progress import ProgressLine
from bench.request import Request
from bench.results import SystemResult

__all__ = ["run_rounds"]


def run_rounds(
    config: BenchConfig, paths: Sequence[str], facts: Facts, line: ProgressLine
) -> list[SystemResult]:
    """Run every system once per round; the rounds of a system are merged into one result."""
    results: dict[str, SystemResult] = {}
    for _ in range(config.rounds):
        for system in config.systems:
            result = _run_one(make_request(config, system, paths, facts), facts, config, line)
            results[system] = _join(results[system], result) if system in results else result
    return list(results.values())


def _run_one(request: Request, facts: Facts, config: BenchConfig, line: ProgressLine) -> SystemResult:
    line.start(PEERS[request.system].title)

    def show(epoch: int, rows: int) -> None:
        done = (epoch + rows / request.rows) / request.epochs
        line.update(done, f"epoch {epoch + 1} of {request.epochs}")

    log = config.folder / "logs" / f"{request.system}.log"
    result = run_system(request, facts.sums, log=log, timeout_seconds=config.timeout_seconds, progress=show)
    if request.rendezvous is not None:
        remove_agreement(request.rendezvous)
    line.finish("FAILED" if result.error else _describe_epochs(result))
    return result


def _join(one: SystemResult, other: SystemResult) -> SystemResult:
    """Merge the epochs of two rounds; first epochs stay marked as such."""
    if one.error is not None or other.error is not None:
        return one if one.error is not None else other
    peaks = [peak for peak in (one.peak_bytes, other.peak_bytes) if peak is not None]
    return SystemResult(
        one.system,
        one.trainers,
        [*one.epochs, *other.epochs],
        one.spans,
        None,
        one.idle_bytes,
        max(peaks, default=None),
        one.estimate,
        other.store,
    )


def _describe_epochs(result: SystemResult) -> str:
    """The epoch times of one system on one line, with the loss if a model was trained."""
    seconds = " ".join(f"{epoch.seconds:.2f}" for epoch in result.epochs)
    losses = [epoch.losses for epoch in result.epochs if epoch.losses is not None]
    text = f"{seconds} s an epoch"
    if losses:
        text += f"; loss {losses[0][0]:.3f} -> " + " -> ".join(f"{last:.3f}" for _, last in losses)
    return text
