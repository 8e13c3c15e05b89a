"""The checks of ``windrow doctor``: each says what it found, whether that is well, and how to fix it."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import windrow
from windrow.core.byte_sizes import format_bytes
from windrow.core.errors import WindrowError
from windrow.core.machine import available_cores, free_memory_bytes
from windrow.core.native_libraries import missing_libraries
from windrow.core.system.memory import memory_bytes
from windrow.core.system.processes import kill_group, open_file_limits
from windrow.io.storage.credentials import redact
from windrow.io.storage.filesystems import connect
from windrow.io.storage.retries import call_within
from windrow.pipeline.executors.choose_executor import ray_is_initialized

Status = Literal["OK", "WARNING", "PROBLEM"]
_REQUIRED = ("numpy", "pyarrow", "fsspec")
_OPTIONAL = ("ray", "torch", "s3fs", "pandas", "matplotlib")
_RANGE = re.compile(r"^([\w.-]+)(?:\[[^\]]*\])?\s*>=\s*([\d.]+)")
_KERNELS = (
    "windrow.shuffle.kernels.native",
    "windrow.io.parquet.chunk_decoder",
    "windrow.io.parquet.footer_validation",
)
_LEAST_MEMORY = 2 * 2**30
_LEAST_SHARED = 2**30
# Ray's object store takes this share of the memory by default, in /dev/shm
_STORE_SHARE = 0.3
_LEAST_FILES, _WANTED_FILES = 4096, 65536
_LEAST_DISK = 10 * 2**30
_RAY_SECONDS, _GPU_SECONDS, _PATH_SECONDS = 120.0, 120.0, 30.0
_KILL_SECONDS = 10.0
_SHOWN = 300

# Ray and torch can hang or crash, so each starts in a process of its own, with a time limit.
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


@dataclass(frozen=True)
class Check:
    """What a check found."""

    status: Status
    name: str
    found: str
    fix: str = ""


def check_all(
    paths: Sequence[str],
    storage_options: dict[str, Any],
    *,
    ray_address: str,
    spill_dir: str | None,
    quick: bool,
) -> list[Check]:
    """Make all checks, at once; ``quick``: without those that start Ray or load torch."""
    calls: list[Callable[[], list[Check]]] = [
        check_system,
        check_libraries,
        check_kernels,
        check_cpus,
        check_memory,
        check_shared_memory,
        check_open_files,
        lambda: check_disk(spill_dir),
        lambda: check_ray(ray_address, quick=quick),
        lambda: check_gpu(quick=quick),
        *(lambda path=path: check_path(path, storage_options) for path in paths),
    ]
    # slow ones wait for other processes or the network, each for a limited time
    with ThreadPoolExecutor(len(calls), thread_name_prefix="windrow-doctor") as threads:
        return [check for found in threads.map(lambda call: call(), calls) for check in found]


def check_system() -> list[Check]:
    """Check the versions of Python and of windrow."""
    version = platform.python_version()
    found = f"{version} on {platform.system()} {platform.machine()}, windrow {windrow.__version__}"
    if sys.platform != "linux":
        return [
            Check(
                "WARNING",
                "Python",
                found,
                "windrow is tested on Linux only: see 'Operating systems' in its docs",
            )
        ]
    return [Check("OK", "Python", found)]


def check_libraries() -> list[Check]:
    """Check the installed versions against the oldest that windrow supports."""
    oldest = _oldest_versions()
    checks = []
    for name in (*_REQUIRED, *_OPTIONAL):
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            checks.append(_missing(name))
            continue
        least = oldest.get(name)
        if least is not None and _numbers(version) < _numbers(least):
            fix = f'pip install "{name}>={least}"'
            checks.append(Check("PROBLEM", name, f"{version}, older than {least}, the oldest supported", fix))
        else:
            checks.append(
                Check("OK", name, version if least is None else f"{version} (supported from {least})")
            )
    return checks


def _missing(name: str) -> Check:
    if name in _REQUIRED:
        return Check("PROBLEM", name, "not installed", f"pip install {name}")
    return Check("OK", name, "not installed; optional")


def _oldest_versions() -> dict[str, str]:
    try:
        listed = metadata.requires("windrow") or []
    except metadata.PackageNotFoundError:
        # it runs from a checkout
        return {}
    return {match[1]: match[2] for match in map(_RANGE.match, listed) if match is not None}


def _numbers(version: str) -> tuple[int, ...]:
    """The numbers of a version, to compare; what follows them, such as "+cpu" or "rc1", is left out."""
    numbers = re.match(r"[\d.]*", version)
    return tuple(int(part) for part in (numbers[0] if numbers else "").split(".") if part)


def check_kernels() -> list[Check]:
    """Check whether the compiled libraries are loaded."""
    for module in _KERNELS:
        import_module(module)
    missing = missing_libraries()
    if not missing:
        return [Check("OK", "kernels", "the compiled libraries are loaded")]
    fix = "install a C compiler and install windrow again, or use a wheel; the order stays the same"
    return [Check("WARNING", "kernels", f"{', '.join(missing)} not loaded: several times slower", fix)]


def check_cpus() -> list[Check]:
    """Check how many cores this process may use."""
    cores, there = available_cores(), os.cpu_count() or 1
    found = f"{cores} of {there} cores" + ("" if cores == there else ", by affinity or a control group")
    if cores < 2:
        return [Check("WARNING", "CPUs", found, "a trainer and its loader share a core: raise the CPU limit")]
    return [Check("OK", "CPUs", found)]


def check_memory() -> list[Check]:
    """Check how much memory is free."""
    free, total = free_memory_bytes(), memory_bytes()[0]
    found = f"{format_bytes(free)} free of {format_bytes(total)}; windows on threads take up to half of what is free"
    if free < _LEAST_MEMORY:
        return [
            Check("WARNING", "memory", found, "use small windows, or raise the memory limit of the container")
        ]
    return [Check("OK", "memory", found)]


def check_shared_memory(folder: Path = Path("/dev/shm")) -> list[Check]:
    """Check the shared memory, which holds Ray's object store and the queues of torch's DataLoader."""
    if not folder.is_dir():
        return [Check("WARNING", "shared memory", f"no {folder}", "Ray then keeps its object store on disk")]
    usage = shutil.disk_usage(folder)
    found = f"{format_bytes(usage.free)} free of {format_bytes(usage.total)} in {folder}"
    wanted = int(_STORE_SHARE * min(memory_bytes()[0], free_memory_bytes()))
    if usage.free < _LEAST_SHARED or usage.free < wanted:
        fix = f"start the container with --shm-size={max(_LEAST_SHARED, wanted) // 2**20}m: Ray's object store is there"
        return [Check("WARNING", "shared memory", found, fix)]
    return [Check("OK", "shared memory", found)]


def check_open_files() -> list[Check]:
    """Check the limit of open files."""
    soft, hard = open_file_limits()
    found = f"{'no limit' if soft is None else f'{soft:,}'} open files"
    if soft is not None and soft < _LEAST_FILES:
        most = "" if hard is None or hard >= _WANTED_FILES else f" (at most {hard:,} without root)"
        return [
            Check(
                "WARNING",
                "open files",
                found,
                f"ulimit -n {_WANTED_FILES}{most}: Ray and many trainers need more",
            )
        ]
    return [Check("OK", "open files", found)]


def check_disk(folder: str | None = None) -> list[Check]:
    """Check the disk for spilled rows and the disk cache."""
    where = folder or tempfile.gettempdir()
    usage = shutil.disk_usage(where)
    found = f"{format_bytes(usage.free)} free of {format_bytes(usage.total)} in {where}, for spilled rows and caches"
    if usage.free < _LEAST_DISK:
        return [Check("WARNING", "disk", found, "set options(cache_dir=...) or TMPDIR to a larger disk")]
    return [Check("OK", "disk", found)]


def check_ray(address: str, *, quick: bool) -> list[Check]:
    """Check whether Ray starts here, or whether the cluster at an address answers."""
    if find_spec("ray") is None:
        return [Check("OK", "Ray", "not installed: windrow runs on threads")]
    here = "initialised in this process" if ray_is_initialized() else "not initialised in this process"
    if quick:
        return [Check("OK", "Ray", f"{here}; not started (--quick)")]
    try:
        found = run_probe(RAY_PROBE, _RAY_SECONDS, address)
    except ProbeError as error:
        what = "a cluster does not start" if address == "local" else f"{address} cannot be joined"
        fix = "see the logs in /tmp/ray/session_latest/logs, and check memory, /dev/shm and versions of Ray"
        return [Check("PROBLEM", "Ray", f"{what}: {error}", fix)]
    if address == "local":
        return [Check("OK", "Ray", f"{found['version']}, {here}; a cluster starts here")]
    return [Check("OK", "Ray", f"{found['version']}, {_describe_cluster(found)}")]


def _describe_cluster(found: dict[str, Any]) -> str:
    resources = found["resources"]
    store = format_bytes(resources.get("object_store_memory", 0))
    return (
        f"{found['nodes']} nodes, {resources.get('CPU', 0):.0f} CPUs, {resources.get('GPU', 0):.0f} GPUs, object "
        f"stores of {store}"
    )


def check_gpu(*, quick: bool) -> list[Check]:
    """Check whether torch sees the GPUs and can use them."""
    devices = sorted(Path("/dev").glob("nvidia[0-9]*"))
    if find_spec("torch") is None:
        return [Check("OK", "GPU", "torch is not installed")]
    if quick:
        return [Check("OK", "GPU", f"{len(devices)} NVIDIA devices; torch not loaded (--quick)")]
    try:
        found = run_probe(GPU_PROBE, _GPU_SECONDS)
    except ProbeError as error:
        return [Check("PROBLEM", "GPU", f"torch fails: {error}", "check the driver and the build of torch")]
    names = found["devices"]
    if names:
        return [Check("OK", "GPU", f"{len(names)} × {names[0]}, CUDA {found['built_for']}")]
    if devices and found["built_for"] is None:
        fix = "install a build of torch for CUDA: https://pytorch.org/get-started/locally"
        return [Check("WARNING", "GPU", f"{len(devices)} NVIDIA devices, and torch is built for CPUs", fix)]
    if devices:
        fix = "check that the driver is as new as CUDA, and that CUDA_VISIBLE_DEVICES names devices"
        return [Check("PROBLEM", "GPU", f"{len(devices)} NVIDIA devices, and torch sees none", fix)]
    return [Check("OK", "GPU", "none")]


def check_path(path: str, options: dict[str, Any]) -> list[Check]:
    """Check whether a path, such as s3://bucket/data, can be reached and exists."""
    name = f"path {path}"
    try:
        connection = connect(path, None, options or None)
    except WindrowError as error:
        return [Check("PROBLEM", name, str(error), "check the URL and --storage-option")]
    (place,) = connection.paths
    try:
        started = time.monotonic()
        info = call_within(_PATH_SECONDS, lambda: connection.lister.info(place))
        milliseconds = 1000 * (time.monotonic() - started)
    except FileNotFoundError:
        if connection.opener is None:  # local files
            return [Check("PROBLEM", name, "there is no such file or directory", "check the spelling")]
        fix = "check the spelling, and that the credentials may list the bucket"
        return [Check("PROBLEM", name, "the storage answers, and there is nothing at this path", fix)]
    except Exception as error:
        fix = "check the endpoint, the region, the credentials and the network"
        why = redact(str(error) or type(error).__name__, connection.secrets)
        return [Check("PROBLEM", name, f"not reachable: {' '.join(why.split())}", fix)]
    return [Check("OK", name, f"{info.get('type', 'found')}; the first answer took {milliseconds:.0f} ms")]


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
    kill_group(process)
    with suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=_KILL_SECONDS)
