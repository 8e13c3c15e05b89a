"""Processes of measured systems: their trees, the memory of these, and requests to those that wait.

Ray's processes outlive a killed driver and become children of init. So a tree is listed repeatedly while its root is
alive, and every process seen is remembered.

Memory is that of anonymous and shared pages, each counted once, without file pages: the sum of ``Pss_Anon`` and
``Pss_Shmem`` over the tree, computed from counters that cost microseconds instead of from ``smaps_rollup``, which
visits every page and takes a quarter of a second if several processes map a full object store. Anonymous pages are
``RssAnon`` (no process here shares them by forking); shared pages are the blocks of the shared-memory files that the
tree has open.
"""

from __future__ import annotations

import importlib
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from glob import glob
from pathlib import Path
from typing import Any

from bench.system.machine import count_cores

_POLL_SECONDS = 0.1
_TICK = 1 / os.sysconf("SC_CLK_TCK")
_MOST_OF_A_CORE = 0.02
_REFRESH_SECONDS, _SAMPLE_SECONDS = 0.5, 0.05
_SHARED = ("/dev/shm/", "/memfd:")
_END_SECONDS, _ORPHAN_SECONDS = 30.0, 3.0
_ANSWER_SECONDS = 600.0
_ROOT = Path(__file__).resolve().parents[2]


def list_tree(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            stat = _read_stat(int(entry.name))
            if stat is not None:
                children.setdefault(int(stat[1]), []).append(int(entry.name))
    found = [root]
    for process in found:
        found.extend(children.get(process, ()))
    return found


def read_cpu_seconds(process: int) -> float:
    """CPU seconds that a process has used; 0 if it has ended."""
    stat = _read_stat(process)
    return 0.0 if stat is None else (int(stat[11]) + int(stat[12])) * _TICK


def read_tree_cpu_seconds() -> float:
    """CPU seconds of this process and of all below it."""
    return sum(map(read_cpu_seconds, list_tree(os.getpid())))


def read_command(process: int) -> str:
    """The command line of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


class ProcessTree:
    """All processes that were ever seen under a root."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._seen: dict[int, bytes] = {}

    def refresh(self) -> list[int]:
        listed = list_tree(self._root)
        self._remember(listed)
        return listed

    def _remember(self, processes: list[int]) -> None:
        starts = {process: _read_start(process) for process in processes}
        self._seen.update({process: start for process, start in starts.items() if start is not None})

    def living(self) -> list[int]:
        """Remembered processes that still run, with their descendants; a reused id counts as another process."""
        for process, start in list(self._seen.items()):
            if _read_start(process) == start:
                self._remember(list_tree(process))
        return [process for process, start in self._seen.items() if _read_start(process) == start]

    def end(self, grace_seconds: float) -> None:
        """Wait for running processes to end on their own, then kill them."""
        kill_at = time.monotonic() + grace_seconds
        while (living := self.living()) and time.monotonic() < kill_at + grace_seconds:
            for process in living if time.monotonic() > kill_at else ():
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            time.sleep(_POLL_SECONDS)


def _read_start(process: int) -> bytes | None:
    """Start time of a process in clock ticks; None if it has ended or is a zombie."""
    stat = _read_stat(process)
    return None if stat is None or stat[0] == b"Z" else stat[19]


def _read_stat(process: int) -> list[bytes] | None:
    """The fields of ``/proc/<id>/stat`` that come after the name: state, parent, ..."""
    try:
        return Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None


def _find_shared_files(processes: list[int]) -> list[str]:
    """One path to each shared-memory file that a tree has open."""
    found: dict[int, str] = {}
    for path in (path for process in processes for path in glob(f"/proc/{process}/fd/*")):
        # a file may be closed meanwhile
        with suppress(OSError):
            if os.readlink(path).startswith(_SHARED):
                found[os.stat(path).st_ino] = path
    return list(found.values())


def _read_blocks(path: str) -> int:
    try:
        return os.stat(path).st_blocks * 512
    except OSError:
        return 0


def _read_counts(process: int) -> tuple[int, int]:
    """Bytes of anonymous and of shared pages that one process maps."""
    kib: dict[str, str] = {}
    with suppress(OSError):
        kib |= dict(re.findall(r"Rss(Anon|Shmem):\s+(\d+)", Path(f"/proc/{process}/status").read_text()))
    return int(kib.get("Anon", 0)) * 1024, int(kib.get("Shmem", 0)) * 1024


class MemorySampler:
    """Samples a tree from a thread, using at most 2 % of a core; new processes are included within half a second."""

    def __init__(self, tree: ProcessTree) -> None:
        self._tree, self._listed = tree, -_REFRESH_SECONDS
        self._processes: list[int] = []
        self._shared: list[str] = []
        # monotonic seconds, bytes
        self._samples: list[tuple[float, int]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="memory sampler")

    def __enter__(self) -> MemorySampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def measure(self) -> int:
        """Current memory of the tree in bytes, including processes started since the last sample."""
        self._listed = -_REFRESH_SECONDS
        return self._measure()

    def peak(self, start: float, end: float) -> int | None:
        """Peak of the samples within a time interval; None if there are none."""
        return max((size for when, size in self._samples if start <= when <= end), default=None)

    def _measure(self) -> int:
        if time.monotonic() - self._listed > _REFRESH_SECONDS:
            self._processes = self._tree.refresh()
            self._shared = _find_shared_files(self._processes)
            self._listed = time.monotonic()
        counts = [_read_counts(process) for process in self._processes]
        files = sum(_read_blocks(path) for path in self._shared)
        mapped = max((shared for _, shared in counts), default=0)
        return sum(anonymous for anonymous, _ in counts) + max(files, mapped)

    def _run(self) -> None:
        pause = 0.0
        while not self._stop.wait(pause):
            began, when = time.thread_time(), time.monotonic()
            self._samples.append((when, self._measure()))
            pause = max(_SAMPLE_SECONDS, (time.thread_time() - began) / _MOST_OF_A_CORE)


class SystemProcess:
    """A module's system in a process of its own, which answers requests; both are pickled.

    The module's ``start``, called with the arguments, prepares the system and returns what answers a request: a dict.
    """

    def __init__(
        self,
        module: str,
        *arguments: Any,
        log: Path,
        name: str = "",
        timeout_seconds: float = _ANSWER_SECONDS,
        python: str = sys.executable,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self._timeout_seconds, self._is_late = timeout_seconds, False
        python_path = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [python, "-m", "bench.system.processes"],
                cwd=_ROOT,
                env={**os.environ, **(environment or {}), "PYTHONPATH": python_path},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                start_new_session=True,  # so that Ctrl-C reaches it only once, through `__exit__`
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        self.id = self._process.pid
        self.tree = ProcessTree(self.id)
        self._watch = threading.Thread(target=self._end_orphans, daemon=True)
        self._watch.start()
        self._asked: Any = (module, arguments)
        self.error: str | None = None

    def __enter__(self) -> SystemProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._interrupt()
        self.tree.refresh()
        with suppress(BrokenPipeError):
            self._stdin.close()
        self._wait_or_kill()
        self._watch.join()
        self._stdout.close()

    def begin(self) -> None:
        """Wait until the system is prepared."""
        if self._asked is not None:
            asked, self._asked = self._asked, None
            self.error = self._exchange(asked).get("error")

    def run(self, request: Any) -> dict[str, Any]:
        """Send a request; returns the answer, or a dict with the key ``error``."""
        self.begin()
        return {"error": self.error} if self.error is not None else self._exchange(request)

    def _exchange(self, request: Any) -> dict[str, Any]:
        timer = threading.Timer(self._timeout_seconds, self._give_up)
        timer.daemon = True
        timer.start()
        try:
            # one that has ended cannot be written to, and leaves half an answer or none
            with suppress(BrokenPipeError):
                pickle.dump(request, self._stdin)
                self._stdin.flush()
            found: dict[str, Any] = pickle.load(self._stdout)
        except (EOFError, pickle.UnpicklingError):
            found = {"error": "the process ended without a result"}
        finally:
            timer.cancel()
        if self._is_late:
            found = {"error": f"{found.get('error')} (ended after {self._timeout_seconds:.0f} s)"}
        return found

    def _give_up(self) -> None:
        self._is_late = True
        self.tree.refresh()
        self._interrupt()
        self._wait_or_kill()

    def _interrupt(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)

    def _wait_or_kill(self) -> None:
        try:
            self._process.wait(_END_SECONDS)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            self._process.kill()
            self._process.wait()

    def _end_orphans(self) -> None:
        """Once the process has ended, end what it left behind, which keeps the pipe of its answers open."""
        self._process.wait()
        self.tree.end(_ORPHAN_SECONDS)


@contextmanager
def start_systems(
    module: str, names: Sequence[str], folder: Path, *arguments: Any
) -> Iterator[list[SystemProcess]]:
    """Each system of a module in a process of its own, until the context ends."""
    # the model's rate is that of one thread everywhere
    environment = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")}
    environment["POLARS_MAX_THREADS"] = str(count_cores())
    with ExitStack() as stack:
        processes = []
        for name in names:
            log = folder / f"{name}.log"
            process = SystemProcess(module, name, *arguments, log=log, name=name, environment=environment)
            processes.append(stack.enter_context(process))
            process.begin()
        yield processes


def shorten_error(error: BaseException) -> str:
    """The error on one line: the last line of a remote traceback; the log has the rest."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip(' "')]
    if len(lines) == 1:
        return f"{type(error).__name__}: {lines[0][:300]}"
    return lines[-1][:300] if lines else type(error).__name__


def _answer_requests() -> None:
    """Answer until standard input ends; what else is printed goes to the log."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    answer: Callable[[Any], dict[str, Any]] | None = None
    is_interrupted = False
    while not is_interrupted:
        found: dict[str, Any] = {}
        try:
            request = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            if answer is None:
                module, arguments = request
                answer = importlib.import_module(module).start(*arguments)
            else:
                found = answer(request)
        except (Exception, KeyboardInterrupt) as error:
            traceback.print_exc()
            found, is_interrupted = {"error": shorten_error(error)}, isinstance(error, KeyboardInterrupt)
        pickle.dump(found, answers)
        answers.flush()
        if answer is None:
            return


if __name__ == "__main__":
    _answer_requests()
