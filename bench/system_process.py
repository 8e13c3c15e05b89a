"""Processes of systems, which wait while another one is measured."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.machine import count_cores

__all__ = ["SystemProcess"]

_END_SECONDS = 30.0


class SystemProcess:
    """One system in a process of its own; the log is a file.

    Parameters
    ----------
    name
        Name of the system.
    arguments
        Those of ``python -m``. The process prints a line of JSON when it is ready, and one for each line that it reads.
    log
        File that gets what the system prints.
    timeout
        Seconds that an answer may take; after that, the process is killed.
    """

    def __init__(self, name: str, arguments: Sequence[str], log: Path, timeout: float) -> None:
        self.name = name
        self._timeout = timeout
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                env={
                    **os.environ,
                    "POLARS_MAX_THREADS": str(count_cores()),
                    # the model's rate is that of one thread everywhere
                    **{f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")},
                },
            )
        self.error: str | None = self._receive().get("error")

    def run(self, request: str) -> dict[str, Any]:
        """Send a request of one line; returns the answer, or a dict with the key ``error``."""
        assert self._process.stdin is not None
        try:
            print(request, file=self._process.stdin, flush=True)
        except BrokenPipeError:
            return {"error": "the process ended"}
        return self._receive()

    def close(self) -> None:
        """Let the process end."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        timer = threading.Timer(self._timeout, self._process.kill)
        timer.start()
        try:
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            return {"error": f"the process ended, or took more than {self._timeout:g} s"}
        found: dict[str, Any] = json.loads(line)
        return found
