"""Takes away from windrow what another system lacks, for the rest of this process.

Put the folder ``startup`` on PYTHONPATH, and ``darwin`` or ``win32`` into WINDROW_TESTED_SYSTEM. windrow's modules then
get stand-ins of `os`, `sys` and the like: `sys.platform` names the other system, and names that are missing there are
missing. All other modules, such as the standard library's own, go on as on Linux, so this is no test of those.
``/proc`` and ``/sys`` cannot be read. As on Windows, files need O_BINARY, and none that is open in this process can be
renamed, replaced or removed.
"""

from __future__ import annotations

import builtins
import ctypes
import errno
import fcntl
import mmap
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType, ModuleType
from typing import Any

from tests.systems.names import find_missing, is_missing

__all__ = ["VARIABLE", "install", "install_from_environment"]

VARIABLE = "WINDROW_TESTED_SYSTEM"
_MODULES = (
    "ctypes", "errno", "fcntl", "grp", "mmap", "msvcrt", "os", "pwd", "resource", "select", "signal", "socket",
    "sys", "termios", "time",
)  # fmt: skip
# before macOS 11
_MORE_MISSING = {("os", "darwin"): {"preadv"}}
_HIDDEN = ("/proc", "/sys/")
_BINARY, _TEMPORARY = 1 << 28, 1 << 29
# type, whence, start, length, pid
_LOCK, _UNLOCK = struct.Struct("hhqqi"), 0
_TOTAL, _FREE = 16 * 2**30, 6 * 2**30


class _StandIn(ModuleType):
    """A module without some of its names, and with others."""

    def __init__(self, real: ModuleType, missing: frozenset[str], more: dict[str, Any]) -> None:
        super().__init__(real.__name__, f"{real.__name__} as another system has it")
        self.__dict__.update(_real=real, _missing=missing, **more)

    def __getattr__(self, name: str) -> Any:
        if name in self._missing:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r} on this system")
        return getattr(self._real, name)


def install_from_environment() -> None:
    """`install` what the environment names; child processes inherit it."""
    install(os.environ[VARIABLE])


def install(system: str) -> None:
    """Make windrow see another system."""
    assert "windrow" not in sys.modules, "windrow has been imported already"
    more: dict[str, dict[str, Any]] = {"sys": {"platform": system}}
    if system == "win32":
        more |= {
            "os": {"O_BINARY": _BINARY, "O_TEMPORARY": _TEMPORARY, "open": _open},
            "mmap": {"mmap": _map},
            "ctypes": {"WinDLL": _Kernel, "CDLL": _load},
            "msvcrt": {"LK_UNLCK": _UNLOCK, "LK_LOCK": 1, "LK_NBLCK": 2, "locking": _lock},
            "subprocess": {"Popen": _popen},
        }
    stand_ins = {name: _make(name, system, more.get(name, {})) for name in (*_MODULES, "subprocess")}
    real_import = builtins.__import__

    def import_module(name: str, globals: Any = None, *args: Any, **options: Any) -> Any:
        if name in stand_ins and _is_windrow((globals or {}).get("__name__", "")):
            found = stand_ins[name]
            if found is None:
                raise ModuleNotFoundError(f"No module named {name!r} on this system", name=name)
            return found
        return real_import(name, globals, *args, **options)

    builtins.__import__ = import_module
    sys.addaudithook(_make_hook(system))


def _make(name: str, system: str, more: dict[str, Any]) -> ModuleType | None:
    """A stand-in for a module; None if the system lacks it."""
    if is_missing(name, system):
        return None
    if name == "msvcrt":
        return _StandIn(sys, frozenset(), more) if more else None
    missing = find_missing(name, system) | _MORE_MISSING.get((name, system), set())
    return _StandIn(__import__(name), missing - more.keys(), more)


def _is_windrow(name: str) -> bool:
    return name == "windrow" or name.startswith("windrow.")


# --- Windows ---------------------------------------------------------------------------


def _open(path: Any, flags: int, mode: int = 0o777, *, dir_fd: None = None) -> int:
    """`os.open` of Windows."""
    if os.path.isdir(path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    assert flags & _BINARY, f"{path} is opened as text"
    descriptor = os.open(path, flags & ~(_BINARY | _TEMPORARY), mode)
    if flags & _TEMPORARY:
        # rather than once it is closed
        os.unlink(path)
    return descriptor


def _map(fileno: int, length: int, tagname: str | None = None, access: int = 0, offset: int = 0) -> mmap.mmap:
    """`mmap.mmap` of Windows, which has no other arguments."""
    return mmap.mmap(fileno, length, access=access, offset=offset)


class _Kernel:
    """The DLL ``kernel32``."""

    def __init__(self, name: str) -> None:
        assert name == "kernel32"

    def GlobalMemoryStatusEx(self, status: Any) -> int:  # noqa: N802 - as Windows calls it
        status = status._obj
        assert status.size == ctypes.sizeof(status) == 64
        status.total, status.free = _TOTAL, _FREE
        return 1


def _load(name: str | None, **options: Any) -> ctypes.CDLL:
    if name is None:
        raise TypeError("LoadLibrary() argument 1 must be str, not None")
    return ctypes.CDLL(name, **options)


def _lock(descriptor: int, mode: int, count: int) -> None:
    """`msvcrt.locking`, by locks of open files; on Windows, a descriptor's own locks exclude it too."""
    place = os.lseek(descriptor, 0, os.SEEK_CUR)
    other = os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR)
    try:
        found = fcntl.fcntl(other, fcntl.F_OFD_GETLK, _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, place, count, 0))
    finally:
        os.close(other)
    is_locked = _LOCK.unpack(found)[0] != fcntl.F_UNLCK
    if is_locked != (mode == _UNLOCK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    kind = fcntl.F_UNLCK if mode == _UNLOCK else fcntl.F_WRLCK
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _LOCK.pack(kind, os.SEEK_SET, place, count, 0))
    except BlockingIOError as error:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES)) from error


def _popen(*args: Any, **options: Any) -> Any:
    """`subprocess.Popen` of Windows, where children inherit no descriptors so."""
    assert not options.get("pass_fds"), "pass_fds is not supported"
    return subprocess.Popen(*args, **options)


# --- files -----------------------------------------------------------------------------


def _make_hook(system: str) -> Callable[[str, tuple[Any, ...]], None]:
    """An audit hook, which raises what the other system would."""

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event in ("open", "os.listdir", "os.scandir"):
            path = os.fspath(args[0]) if isinstance(args[0], (str, os.PathLike)) else ""
            if path.startswith(_HIDDEN) and _is_asked_by_windrow():
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        elif system == "win32" and event in ("os.remove", "os.rename") and _is_asked_by_windrow():
            # paths, and then as many descriptors of the folders that they are in
            count = len(args) // 2
            for path, folder in zip(args[:count], args[count:], strict=True):
                if _is_open(path, folder):
                    raise PermissionError(errno.EACCES, "it is open in this process", path)

    return hook


def _is_asked_by_windrow() -> bool:
    """Whether windrow made a call, itself or through the standard library."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name.partition(".")[0] not in sys.stdlib_module_names:
            return _is_windrow(name)
        frame = frame.f_back
    return False


def _is_open(path: Any, folder: int) -> bool:
    """Whether this process has a file open, or mapped into memory."""
    if folder >= 0:
        path = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), path)
    try:
        status = os.stat(path)
    except OSError:
        return False
    identity = status.st_dev, status.st_ino
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            found = os.stat(int(name))
            if (found.st_dev, found.st_ino) == identity:
                return True
    with open("/proc/self/maps", "rb") as maps:
        place = os.fsencode(os.path.realpath(path))
        return any(line.rstrip(b"\n").endswith(b" " + place) for line in maps)
