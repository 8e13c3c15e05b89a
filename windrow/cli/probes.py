"""Probes that can hang or crash, such as starting Ray: each runs in a process of its own, with a time limit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from typing import Any

__all__ = ["GPU_PROBE", "RAY_PROBE", "ProbeError", "run_probe"]

_KILL_SECONDS = 10.0
_SHOWN = 300

RAY_PROBE = """
import json, sys
import ray
address = sys.argv[1]
more = {} if address != "local" else {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 80 * 2**20}
ray.init(address=address, log_to_driver=False, logging_level="ERROR", **more)
found = {"version": ray.__version__, "resources": ray.cluster_resources(), "nodes": len(ray.nodes())}
ray.shutdown()
print(json.dumps(found))
"""

GPU_PROBE = """
import json
import torch
count = torch.cuda.device_count() if torch.cuda.is_available() else 0
for device in range(count):
    torch.zeros(1, device=f"cuda:{device}")
names = [torch.cuda.get_device_name(device) for device in range(count)]
print(json.dumps({"version": torch.__version__, "built_for": torch.version.cuda, "devices": names}))
"""


class ProbeError(Exception):
    """A probe failed or took too long; the text says why."""


def run_probe(code: str, seconds: float, *arguments: str) -> dict[str, Any]:
    """Run Python code in a process of its own, and return the JSON of its last line.

    >>> run_probe("print('{}')", 30)
    {}
    """
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # so that what it started ends with it
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        _kill(process)
        raise ProbeError(f"no answer within {seconds:.0f} s") from None
    except BaseException:
        _kill(process)
        raise
    lines = output.strip().splitlines()
    if process.returncode or not lines:
        problem = errors.strip().splitlines()
        raise ProbeError((problem[-1] if problem else f"exit code {process.returncode}")[:_SHOWN])
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def _kill(process: subprocess.Popen[str]) -> None:
    with suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=_KILL_SECONDS)
