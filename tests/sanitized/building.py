"""Builds the C libraries with the address and undefined-behaviour sanitizers, and runs processes with them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["FOLDER_VARIABLE", "PACKAGE", "SOURCES", "build", "find_runtime", "run"]

REPOSITORY = Path(__file__).parents[2]
PACKAGE = REPOSITORY / "windrow"
# each library is built from all C files in its folder of the package, which include headers of other folders
SOURCES = {
    "windrow.shuffle.kernels._kernels": PACKAGE / "shuffle" / "kernels",
    "windrow.io.parquet._decode": PACKAGE / "io" / "parquet",
}
FOLDER_VARIABLE = "WINDROW_SANITIZED_FOLDER"
_FLAGS = "-O1 -g -fPIC -shared -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all"


def find_runtime() -> str | None:
    """Return the runtime library of the sanitizer, which a process must preload; None if no compiler has it."""
    return _find_library("libasan.so")


def _find_library(name: str) -> str | None:
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    done = subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=False)
    path = done.stdout.strip()
    # a compiler prints the name alone if it does not have the library
    return path if os.path.isabs(path) and os.path.exists(path) else None


def build(folder: Path, package: Path = PACKAGE) -> None:
    """Compile the libraries of the package, or of a copy of it, into a folder, each under the name of its module."""
    for module, source in SOURCES.items():
        files = [str(path) for path in sorted((package / source.relative_to(PACKAGE)).glob("*.c"))]
        command = ["cc", *_FLAGS.split(), "-o", str(folder / f"{module}.so"), *files]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def run(folder: Path, arguments: Sequence[str], seconds: float = 170.0) -> subprocess.CompletedProcess[str]:
    """Run Python with the libraries of a folder instead of the installed ones."""
    runtime = find_runtime()
    assert runtime is not None, "the sanitizer is required"
    environment = {
        **os.environ,
        FOLDER_VARIABLE: str(folder),
        # with the library of C++, or the sanitizer ends the process at Arrow's first exception
        "LD_PRELOAD": " ".join(filter(None, [runtime, _find_library("libstdc++.so.6")])),
        # Python does not free all memory at exit
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        # malloc instead of pymalloc, so that the sanitizer knows the bounds of every allocation
        "PYTHONMALLOC": "malloc",
        "ARROW_DEFAULT_MEMORY_POOL": "system",
        "PYTHONPATH": str(REPOSITORY),
    }
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
