"""Runs systems in turns, each in a process of its own, samples its memory, and receives its result.

A process of its own, which this module also runs, so that no memory, threads or Ray session carry over. What they
send is pickled. The request arrives on standard input, followed by "go" after the idle memory was
measured. Events are written to the given file descriptor.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, TextIO

from bench.peers.base import load_peer
from bench.peers.names import PEERS
from bench.system.console import ProgressLine
from bench.system.processes import MemorySampler, ProcessTree
from bench.throughput.options import BenchConfig, make_request
from bench.training.facts import Facts
from bench.training.request import Request
from bench.training.results import SystemResult, merge_trainers
from bench.training.trainer import remove_agreement

_ROOT = Path(__file__).resolve().parents[2]
_GRACE_SECONDS = 15.0
_ORPHAN_SECONDS = 3.0


def run_rounds(
    config: BenchConfig, paths: Sequence[str], facts: Facts, line: ProgressLine
) -> list[SystemResult]:
    """Run every system once per round; the rounds of a system are merged into one result."""
    results: dict[str, SystemResult] = {}
    for _ in range(config.rounds):
        for system in config.systems:
            result = _run_one(make_request(config, system, paths, facts), config, line)
            results[system] = _join(results[system], result) if system in results else result
    return list(results.values())


def _run_one(request: Request, config: BenchConfig, line: ProgressLine) -> SystemResult:
    line.start(PEERS[request.system].title)

    def show(epoch: int, rows: int) -> None:
        done = (epoch + rows / request.rows) / request.epochs
        line.update(done, f"epoch {epoch + 1} of {request.epochs}")

    log = config.folder / "logs" / f"{request.system}.log"
    result = run_system(request, log=log, timeout_seconds=config.timeout_seconds, progress=show)
    if request.rendezvous is not None:
        remove_agreement(request.rendezvous)
    line.finish("FAILED" if result.error else _describe_epochs(result))
    return result


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


def run_system(
    request: Request, *, log: Path, timeout_seconds: float, progress: Callable[[int, int], None]
) -> SystemResult:
    """Measure one system; a failure or a timeout is a result with ``error`` set."""
    reader, writer = os.pipe()
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as output:
        child = _start(request.python or sys.executable, output, writer)
        os.close(writer)
        tree, late = ProcessTree(child.pid), threading.Event()
        watch = threading.Thread(target=_watch, args=(child, tree, timeout_seconds, late), daemon=True)
        watch.start()
        try:
            result = _communicate(child, tree, reader, request, progress)
        except BaseException:
            _interrupt(child)  # nobody waits for the result any more
            raise
        finally:
            tree.refresh()
            _wait_or_kill(child)
            watch.join()
            if child.stdin is not None:
                child.stdin.close()
    if result.error is not None:
        result.error += f" (ended after {timeout_seconds:.0f} s)" if late.is_set() else ""
        result.error += f"; its output is in {log}"
    return result


def _start(python: str, output: TextIO, writer: int) -> subprocess.Popen[bytes]:
    inherited = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.Popen(
        [python, "-m", "bench.throughput.launch", str(writer)],
        cwd=_ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(inherited)},
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=subprocess.STDOUT,
        pass_fds=[writer],
        start_new_session=True,  # so that Ctrl-C reaches the child only once, through _interrupt
    )


def _communicate(
    child: subprocess.Popen[bytes],
    tree: ProcessTree,
    reader: int,
    request: Request,
    progress: Callable[[int, int], None],
) -> SystemResult:
    assert child.stdin is not None
    sampler = MemorySampler(tree)
    idle_bytes: int | None = None
    result = SystemResult(request.system, request.trainers, error="the process ended without a result")
    _send(child.stdin, pickle.dumps(request))
    sampler.start()  # from the start, because it also records the processes of the tree
    with contextlib.ExitStack() as stack:
        events = stack.enter_context(os.fdopen(reader, "rb"))
        stack.callback(sampler.stop)
        # a process that was killed leaves half an event, or none
        stack.enter_context(contextlib.suppress(EOFError, pickle.UnpicklingError))
        while isinstance(event := pickle.load(events), tuple):
            if event:
                progress(*event)
            else:
                idle_bytes = sampler.measure()
                _send(child.stdin, b"go\n")
        result = event
    _add_memory(result, sampler, idle_bytes)
    return result


def _send(stdin: IO[bytes], data: bytes) -> None:
    try:
        stdin.write(data)
        stdin.flush()
    except BrokenPipeError:
        pass  # the child has ended; the loop over its events ends too and reports it


def _add_memory(result: SystemResult, sampler: MemorySampler, idle_bytes: int | None) -> None:
    result.idle_bytes = idle_bytes
    if idle_bytes is None:
        return
    for epoch in result.epochs:
        peak = sampler.peak(epoch.start, epoch.end)
        epoch.peak_bytes = None if peak is None else max(0, peak - idle_bytes)
    result.peak_bytes = max(
        (epoch.peak_bytes for epoch in result.epochs if epoch.peak_bytes is not None), default=None
    )


def _watch(
    child: subprocess.Popen[bytes], tree: ProcessTree, timeout_seconds: float, late: threading.Event
) -> None:
    """Interrupt the child after the timeout; after its end, kill processes that it left behind.

    Then no process keeps the event pipe open, so the loop over the events ends.
    """
    try:
        child.wait(timeout_seconds)
    except subprocess.TimeoutExpired:
        late.set()
        tree.refresh()
        _interrupt(child)
        _wait_or_kill(child)
    tree.end(_ORPHAN_SECONDS)


def _interrupt(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        child.send_signal(signal.SIGINT)


def _wait_or_kill(child: subprocess.Popen[bytes]) -> None:
    try:
        child.wait(_GRACE_SECONDS)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        child.kill()
        child.wait()


class _Events:
    """What the process sends, pickled: an empty tuple while it is idle, epoch and rows, and at last the result."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def send(self, event: Any) -> None:
        data = pickle.dumps(event)
        while data:
            data = data[os.write(self._descriptor, data) :]

    def progress(self, epoch: int, rows: int) -> None:
        self.send((epoch, rows))


def main(descriptor: int) -> None:
    os.set_inheritable(descriptor, False)  # the pipe closes with this process, even if its children live on
    request: Request = pickle.load(sys.stdin.buffer)
    events = _Events(descriptor)
    cache = request.cache if request.system.startswith("windrow") else None
    result = SystemResult(request.system, request.trainers, cache=cache)
    try:
        _measure(request, events, result)
    except KeyboardInterrupt:
        result.error = "interrupted"
    except Exception as error:
        traceback.print_exc()
        result.error = _shorten(error)
    events.send(result)


def _measure(request: Request, events: _Events, result: SystemResult) -> None:
    peer = load_peer(request, events.progress)
    try:
        peer.prepare()
        events.send(())
        sys.stdin.buffer.readline()
        trainers = peer.run()
        result.epochs = merge_trainers(request, trainers, PEERS[request.system].delivers)
        details = peer.details()
        result.tasks = sum(trainer.tasks for trainer in trainers)
        result.estimate, result.store = details.estimate, details.store
    finally:
        peer.close()


def _shorten(error: Exception) -> str:
    """The error on one line: the last line of a remote traceback; the log has the rest."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip(' "')]
    if len(lines) == 1:
        return f"{type(error).__name__}: {lines[0][:300]}"
    return lines[-1][:300] if lines else type(error).__name__


if __name__ == "__main__":
    main(int(sys.argv[1]))
