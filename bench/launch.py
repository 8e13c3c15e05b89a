"""Runs one system in a child process, samples its memory, and receives its result."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from bench.exactly_once import Sums
from bench.memory import MemorySampler
from bench.process_tree import ProcessTree
from bench.request import Request
from bench.results import SystemResult

__all__ = ["run_system"]

_ROOT = Path(__file__).resolve().parent.parent
_GRACE_SECONDS = 15.0
_ORPHAN_SECONDS = 3.0


def run_system(
    request: Request, sums: Sums, *, log: Path, timeout_seconds: float, progress: Callable[[int, int], None]
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
            result = _communicate(child, tree, reader, request, sums, progress)
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


def _start(python: str, output: TextIO, writer: int) -> subprocess.Popen[str]:
    inherited = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.Popen(
        [python, "-m", "bench.child", str(writer)],
        cwd=_ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(inherited)},
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=subprocess.STDOUT,
        pass_fds=[writer],
        start_new_session=True,  # so that Ctrl-C reaches the child only once, through _interrupt
        text=True,
    )


def _communicate(
    child: subprocess.Popen[str],
    tree: ProcessTree,
    reader: int,
    request: Request,
    sums: Sums,
    progress: Callable[[int, int], None],
) -> SystemResult:
    assert child.stdin is not None
    sampler = MemorySampler(tree)
    idle_bytes: int | None = None
    result = SystemResult(request.system, request.trainers, error="the process ended without a result")
    _send_line(child.stdin, json.dumps({"request": request.to_json(), "sums": sums}))
    sampler.start()  # from the start, because it also records the processes of the tree
    with contextlib.ExitStack() as stack:
        events = stack.enter_context(os.fdopen(reader))
        stack.callback(sampler.stop)
        for line in events:
            event: dict[str, Any] = json.loads(line)
            if event["event"] == "idle":
                idle_bytes = sampler.measure()
                _send_line(child.stdin, "go")
            elif event["event"] == "progress":
                progress(event["epoch"], event["rows"])
            elif event["event"] == "result":
                result = SystemResult.from_dict(event["result"])
                break
    _add_memory(result, sampler, idle_bytes)
    return result


def _send_line(stdin: Any, line: str) -> None:
    try:
        stdin.write(line + "\n")
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
    child: subprocess.Popen[str], tree: ProcessTree, timeout_seconds: float, late: threading.Event
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


def _interrupt(child: subprocess.Popen[str]) -> None:
    if child.poll() is None:
        child.send_signal(signal.SIGINT)


def _wait_or_kill(child: subprocess.Popen[str]) -> None:
    try:
        child.wait(_GRACE_SECONDS)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        child.kill()
        child.wait()
