"""Processes: this one and its threads, others of the machine, and sockets between them."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from windrow.core.system.memory import NAME

if sys.platform != "win32":
    import resource


def usable_cores() -> int:
    """Cores that this process may run on; all, where no affinity is known."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def use_batch_scheduling() -> None:
    """Switch this thread permanently to SCHED_BATCH (Linux), so that it does not preempt others as it wakes up.

    Otherwise Linux often suspends the thread that wakes this one for milliseconds, while that thread holds
    the GIL. The CPU share stays the same. If the policy cannot be set, nothing changes.
    """
    if sys.platform == "linux":
        with suppress(OSError):
            if os.sched_getscheduler(0) == os.SCHED_OTHER:
                os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def major_faults() -> int:
    """How often this thread has waited for a page of a file; 0 where threads are not counted."""
    if sys.platform == "linux":
        return resource.getrusage(resource.RUSAGE_THREAD).ru_majflt
    return 0


def count_waits() -> int | None:
    """How often this thread or, on macOS, this process has waited; None where that is unknown."""
    if sys.platform != "win32":
        return resource.getrusage(getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)).ru_nvcsw
    return None


def open_file_limits() -> tuple[int | None, int | None]:
    """The limit of open files, and how far it can be raised, each None without a limit."""
    if sys.platform != "win32":
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        unlimited = resource.RLIM_INFINITY
        return (None if soft == unlimited else soft), (None if hard == unlimited else hard)
    return None, None


HAS_THREAD_PRIORITY = sys.platform == "linux"
"""Whether a thread's niceness is its own, contrary to POSIX."""


def thread_niceness(thread: int) -> int:
    """The niceness of a thread, by its native id."""
    if sys.platform == "linux":
        return os.getpriority(os.PRIO_PROCESS, thread)
    return 0


def set_thread_niceness(thread: int, niceness: int) -> None:
    """Set the niceness of a thread."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, thread, niceness)


def call_before_forks(function: Callable[[], object]) -> None:
    """Have a function called before each fork of this process."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=function)


def call_in_forked_children(function: Callable[[], object]) -> None:
    """Have a function called in each process that is forked from this one; where none is, there is nothing to do."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)


# --- other processes -------------------------------------------------------------------


def kill_group(process: subprocess.Popen[Any]) -> None:
    """Kill a process that has a session of its own, with all that it started; on Windows, the process alone."""
    with suppress(OSError):
        if sys.platform == "win32":
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)


def end_signals() -> list[signal.Signals]:
    """The signals that ask a process to end."""
    if sys.platform != "win32":
        return [signal.SIGTERM, signal.SIGHUP]
    return [signal.SIGTERM]


def add_cores_of(process: int) -> None:
    """Let this process run on the cores of another one too, if they can be told."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.sched_setaffinity(0, os.sched_getaffinity(0) | os.sched_getaffinity(process))


def is_own(path: Path) -> bool:
    """Whether a file belongs to the user of this process; on Windows, temporary folders are the user's own."""
    return sys.platform == "win32" or path.stat().st_uid == os.getuid()


def is_private(found: os.stat_result) -> bool:
    """Whether nobody but the user of this process can read or write a file; on Windows, as `is_own`."""
    return sys.platform == "win32" or (found.st_uid == os.getuid() and not found.st_mode & 0o077)


def find_processes(mark: str) -> list[int]:
    """Other processes with a text in their environment; none where the system does not tell."""
    found = []
    with suppress(FileNotFoundError):
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal() and int(entry.name) != os.getpid():
                with suppress(OSError):
                    if mark.encode() in (entry / "environ").read_bytes():
                        found.append(int(entry.name))
    return found


def kill_processes(processes: Sequence[int]) -> None:
    """Kill processes, of which some may have ended."""
    for process in processes:
        with suppress(ProcessLookupError):
            if sys.platform == "win32":
                # at once, contrary to POSIX
                os.kill(process, signal.SIGTERM)
            else:
                os.kill(process, signal.SIGKILL)


def local_socket() -> socket.socket:
    """A socket for processes of this machine, which have the path of a file."""
    if sys.platform == "win32":
        raise OSError(errno.EOPNOTSUPP, f"Python has no local sockets on {NAME}")
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)


def send_descriptor(connection: socket.socket, descriptor: int) -> None:
    """Send a descriptor through a `local_socket`."""
    if sys.platform != "win32":
        socket.send_fds(connection, [b"\0"], [descriptor])


def receive_descriptor(connection: socket.socket) -> int:
    """Receive what `send_descriptor` sent."""
    if sys.platform == "win32":
        raise OSError(errno.EOPNOTSUPP, f"descriptors are not sent on {NAME}")
    _, descriptors, _, _ = socket.recv_fds(connection, 1, 1)
    return descriptors[0]
