"""Runs scripts under torchrun, and finds what a job leaves behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Done", "find_leftovers", "run_torchrun", "start_torchrun", "wait_for"]

# Windrow's directories of this job; short, since Ray's sockets lie in them.
_TMP = "TMPDIR"


@dataclass(frozen=True)
class Done:
    """A finished job: its exit code, the JSON values that ranks printed by rank, and all output."""

    code: int
    ranks: dict[int, list[Any]]
    output: str


def start_torchrun(
    script: Path, ranks: int, arguments: Sequence[str] = (), *, options: Sequence[str] = (), tmp: str
) -> subprocess.Popen[str]:
    """Start a job, which prints with ``report`` of `HEAD`; ``tmp`` is its directory for temporary files."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        f"--nproc-per-node={ranks}",
        *("--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"),
        *options,
        str(script),
        *arguments,
    ]
    environment = {**os.environ, _TMP: tmp, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    environment.pop("RAY_ADDRESS", None)
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def wait_for(job: subprocess.Popen[str], seconds: float = 240.0) -> Done:
    """Wait for a job, and for everything that has inherited its output."""
    try:
        output, _ = job.communicate(timeout=seconds)
    except subprocess.TimeoutExpired as error:
        # torchrun ends its ranks, and says what they were doing
        job.terminate()
        output, _ = job.communicate(timeout=40)
        raise AssertionError(f"the job did not end within {seconds:g} s:\n{output}") from error
    ranks: dict[int, list[Any]] = {}
    for line in output.splitlines():
        if line.startswith("#"):
            rank, _, value = line[1:].partition(" ")
            ranks.setdefault(int(rank), []).append(json.loads(value))
    return Done(job.returncode, ranks, output)


def run_torchrun(
    script: Path,
    ranks: int,
    arguments: Sequence[str] = (),
    *,
    options: Sequence[str] = (),
    seconds: float = 240.0,
) -> Done:
    """Run a job to its end, and check that it leaves nothing behind."""
    with tempfile.TemporaryDirectory(prefix="wt-", dir="/tmp") as tmp:
        done = wait_for(start_torchrun(script, ranks, arguments, options=options, tmp=tmp), seconds)
        assert find_leftovers(tmp) == []
    return done


def find_leftovers(tmp: str) -> list[str]:
    """Processes, sockets and files of jobs whose directory for temporary files is ``tmp``."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                environment = (entry / "environ").read_bytes().split(b"\0")
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if f"{_TMP}={tmp}".encode() in environment:
                found.append(f"process {entry.name}: {command}")
    # torch's own files are not windrow's
    return found + [str(path) for path in Path(tmp).glob("windrow*")]
