"""Memory: what the machine has, what this process takes, and what it shares with others."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from windrow.core.errors import PlanError
from windrow.core.system.files import open_nameless

NAME = {"linux": "Linux", "darwin": "macOS", "win32": "Windows"}.get(sys.platform, sys.platform)
"""The operating system as messages call it."""

SHARES_MEMORY = sys.platform != "win32"
"""Whether processes can map one file without a name, and hand its descriptor to one another."""


def check_shares_memory(what: str, instead: str) -> None:
    """Raise a `PlanError` where processes cannot share memory so, which ``what`` needs; ``instead`` says what to do."""
    if not SHARES_MEMORY:
        raise PlanError(f"{what} not supported on {NAME}: {instead}")


MAP_SHARED: int = getattr(mmap, "MAP_SHARED", 1)
MAP_PRIVATE: int = getattr(mmap, "MAP_PRIVATE", 2)
PROT_READ_WRITE: int = getattr(mmap, "PROT_READ", 1) | getattr(mmap, "PROT_WRITE", 2)
MADV_REMOVE: int | None = getattr(mmap, "MADV_REMOVE", None)
# of Linux 5.14 and newer, which Python does not name
MADV_POPULATE_WRITE: int | None = 23 if sys.platform == "linux" else None


def anonymous_memory(size: int) -> mmap.mmap:
    """Pages of zeros for this process alone, which go back to the system with the last view of them."""
    if sys.platform == "win32":
        return mmap.mmap(-1, size)
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def open_shared_file(name: str) -> int:
    """A descriptor of a file without a name: in memory or, where there are no such files, in the temporary folder."""
    if sys.platform == "linux":
        return os.memfd_create(name, os.MFD_CLOEXEC)
    return open_nameless(Path(tempfile.gettempdir()), f".{name}")


def c_function(name: str, arguments: list[Any], result: Any) -> Callable[..., Any] | None:
    """A function of the C library of POSIX systems; None if there is none."""
    if sys.platform == "win32":
        return None
    function: Any = getattr(ctypes.CDLL(None, use_errno=True), name, None)
    if function is not None:
        function.argtypes, function.restype = arguments, result
    found: Callable[..., Any] | None = function
    return found


class _MemoryStatus(ctypes.Structure):
    """`MEMORYSTATUSEX` of Windows."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("load", ctypes.c_uint32),
        *((name, ctypes.c_uint64) for name in ("total", "free", "a", "b", "c", "d", "e")),
    )


def memory_bytes() -> tuple[int, int]:
    """The memory of this machine, and how much of that is available; where that is unknown, as on macOS, all of it."""
    if sys.platform == "win32":
        status = _MemoryStatus(size=ctypes.sizeof(_MemoryStatus))
        if not ctypes.WinDLL("kernel32").GlobalMemoryStatusEx(ctypes.byref(status)):
            raise MemoryError("Windows does not say how much memory there is")
        return status.total, status.free
    total = int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return total, total
