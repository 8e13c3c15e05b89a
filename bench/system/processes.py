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

import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any

from bench.system.machine import count_cores

_POLL_SECONDS = 0.1
_TICK = 1 / os.sysconf("SC_CLK_TCK")
_MOST_OF_A_CORE = 0.02
_REFRESH_SECONDS = 0.5
_SHARED = ("/dev/shm/", "/memfd:")
_END_SECONDS = 30.0
_ANSWER_SECONDS = 600.0


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
            if time.monotonic() > kill_at:
                _kill(living)
            time.sleep(_POLL_SECONDS)


def _kill(processes: list[int]) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


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


class TreeMemory:
    """Measures one tree repeatedly; new processes are included within half a second."""

    def __init__(self, tree: ProcessTree) -> None:
        self._tree = tree
        self._listed = -_REFRESH_SECONDS
        self._processes: list[int] = []
        self._shared: list[str] = []

    def refresh(self) -> None:
        self._processes = self._tree.refresh()
        self._shared = _find_shared_files(self._processes)
        self._listed = time.monotonic()

    def measure(self) -> int:
        if time.monotonic() - self._listed > _REFRESH_SECONDS:
            self.refresh()
        counts = [_read_counts(process) for process in self._processes]
        files = sum(_read_blocks(path) for path in self._shared)
        mapped = max((shared for _, shared in counts), default=0)
        return sum(anonymous for anonymous, _ in counts) + max(files, mapped)


def _find_shared_files(processes: list[int]) -> list[str]:
    """One path to each shared-memory file that a tree has open."""
    found: dict[int, str] = {}
    for process in processes:
        folder = f"/proc/{process}/fd"
        try:
            paths = [f"{folder}/{name}" for name in os.listdir(folder)]
            shared = [path for path in paths if _read_link(path).startswith(_SHARED)]
            found.update({os.stat(path).st_ino: path for path in shared})
        except OSError:
            continue  # the process ended meanwhile
    return list(found.values())


def _read_link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _read_blocks(path: str) -> int:
    try:
        return os.stat(path).st_blocks * 512
    except OSError:
        return 0


def _read_counts(process: int) -> tuple[int, int]:
    """Bytes of anonymous and of shared pages that one process maps."""
    try:
        with open(f"/proc/{process}/status", "rb") as file:
            lines = file.read().splitlines()
    except OSError:
        return 0, 0
    kib = {
        line.split()[0]: int(line.split()[1])
        for line in lines
        if line.startswith((b"RssAnon:", b"RssShmem:"))
    }
    return kib.get(b"RssAnon:", 0) * 1024, kib.get(b"RssShmem:", 0) * 1024


class MemorySampler:
    """Samples a tree from a thread, using at most 2 % of a core."""

    def __init__(self, tree: ProcessTree, interval_seconds: float = 0.05) -> None:
        self.samples: list[tuple[float, int]] = []
        self._memory = TreeMemory(tree)
        self._interval = interval_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="memory sampler")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def measure(self) -> int:
        """Current memory of the tree in bytes, including processes started since the last sample."""
        self._memory.refresh()
        return self._memory.measure()

    def peak(self, start: float, end: float) -> int | None:
        """Peak of the samples within a time interval; None if there are none."""
        return max((size for when, size in self.samples if start <= when <= end), default=None)

    def _run(self) -> None:
        pause = 0.0
        while not self._stop.wait(pause):
            began = time.thread_time()
            when = time.monotonic()
            self.samples.append((when, self._memory.measure()))
            pause = max(self._interval, (time.thread_time() - began) / _MOST_OF_A_CORE)


class SystemProcess:
    """One system in a process of its own, which calls ``answer_requests``."""

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

    @property
    def id(self) -> int:
        return self._process.pid

    def run(self, request: Any) -> dict[str, Any]:
        """Send a request as JSON; returns the answer, or a dict with the key ``error``."""
        assert self._process.stdin is not None
        try:
            print(json.dumps(request), file=self._process.stdin, flush=True)
        except BrokenPipeError:
            return {"error": "the process ended"}
        return self._receive()

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
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
        timer.daemon = True
        timer.start()
        try:
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            return {"error": f"the process ended, or took more than {self._timeout:g} s"}
        found: dict[str, Any] = json.loads(line)
        return found


@contextmanager
def start_systems(
    module: str, names: Sequence[str], folder: Path, *arguments: str
) -> Iterator[list[SystemProcess]]:
    """Each system in a process of its own, which runs ``module NAME`` with the arguments, until the context ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        processes = []
        for name in names:
            log = folder / f"{name}.log"
            processes.append(SystemProcess(name, [module, name, *arguments], log, _ANSWER_SECONDS))
            stack.callback(processes[-1].close)
        yield processes


def run_for_json(command: Sequence[str], timeout_seconds: float | None = None) -> dict[str, Any]:
    """Run a command; returns the JSON on the last line that it prints, or a dict with the key ``error``."""
    root = Path(__file__).resolve().parents[2]
    try:
        done = subprocess.run(
            command, cwd=root, capture_output=True, text=True, timeout=timeout_seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return {"error": f"not done within {timeout_seconds:g} s"}
    printed = done.stdout.strip().splitlines()[-1:]
    if done.returncode or not printed:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:]
        return {"error": f"exit status {done.returncode}: {' '.join(last)}"}
    found: dict[str, Any] = json.loads(printed[0])
    return found


def make_torchrun(ranks: int, *module: str) -> list[str]:
    """The command that runs a module, with its arguments, as some ranks of torchrun."""
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}"]
    return [*command, "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "-m", *module]


def answer_requests(start: Callable[[], Callable[[Any], dict[str, Any]]]) -> None:
    """Answer what `SystemProcess` sends until standard input ends; what else is printed goes to the log.

    ``start`` prepares the system, and returns what answers a request.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    answer: Callable[[Any], dict[str, Any]] | None = None
    for line in chain(["null"], sys.stdin):
        found: dict[str, Any] = {}
        try:
            if answer is None:
                answer = start()
            else:
                found = answer(json.loads(line))
        except Exception as error:
            traceback.print_exc()
            text = str(error).strip().splitlines()
            found = {"error": f"{type(error).__name__}: {text[0][:200] if text else ''}"}
        print(json.dumps(found), file=answers, flush=True)
        if answer is None:
            return
