"""The systems one after the other, once or several times."""

from __future__ import annotations

from collections.abc import Sequence

from bench.agreement import forget_agreements
from bench.asked import Asked, make_request
from bench.facts import Facts
from bench.launch import run_system
from bench.peers import PEERS
from bench.progress import ProgressLine
from bench.request import Request
from bench.results import SystemResult

__all__ = ["run_rounds"]


def run_rounds(asked: Asked, paths: Sequence[str], facts: Facts, line: ProgressLine) -> list[SystemResult]:
    """Every system once a round; the rounds of a system are one result."""
    results: dict[str, SystemResult] = {}
    for _ in range(asked.rounds):
        for system in asked.systems:
            result = _run_one(make_request(asked, system, paths, facts), facts, asked, line)
            results[system] = _join(results[system], result) if system in results else result
    return list(results.values())


def _run_one(request: Request, facts: Facts, asked: Asked, line: ProgressLine) -> SystemResult:
    line.start(PEERS[request.system].title)

    def show(epoch: int, rows: int) -> None:
        done = (epoch + rows / request.rows) / request.epochs
        line.update(done, f"epoch {epoch + 1} of {request.epochs}")

    log = asked.folder / "logs" / f"{request.system}.log"
    result = run_system(request, facts.sums, log=log, timeout_seconds=asked.timeout_seconds, progress=show)
    if request.rendezvous is not None:
        forget_agreements(request.rendezvous)
    line.finish("FAILED" if result.error else _describe_epochs(result))
    return result


def _join(one: SystemResult, other: SystemResult) -> SystemResult:
    """Pool the epochs of two rounds; a first epoch stays a first epoch."""
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
    """The epochs of one system on one line, the loss where a model was trained."""
    seconds = " ".join(f"{epoch.seconds:.2f}" for epoch in result.epochs)
    losses = [epoch.losses for epoch in result.epochs if epoch.losses is not None]
    text = f"{seconds} s an epoch"
    if losses:
        text += f"; loss {losses[0][0]:.3f} -> " + " -> ".join(f"{last:.3f}" for _, last in losses)
    return text
