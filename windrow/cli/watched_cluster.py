"""A Ray cluster that a command watches: a child process connects to it, and can be ended whatever Ray does there."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import Any

from windrow.core.errors import PlanError, StallError

# importing Ray, where all ranks of a machine do that at the same time; and connecting
_START_SECONDS, _CONNECT_SECONDS = 60.0, 60.0
# of calls to coordinators, a few more than the child waits for them
_ANSWER_SECONDS, _SPANS_SECONDS = 30.0, 90.0
_END_SECONDS = 5.0
_POLL_SECONDS = 0.1
_RUN = (
    "import json, sys; sys.path[:] = json.loads(sys.stdin.readline()); "
    "from windrow.pipeline.executors.ray.watch import main; main()"
)
# what Ray's C++ code prints when a cluster does not accept a token, before it retries or crashes
_WRONG_TOKEN = ("InvalidAuthToken", "Unauthenticated")
_GIVE_TOKEN = (
    "Set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH to the file that has it. The token of a "
    "cluster that windrow starts for a launcher's ranks is found on each of its nodes by the user who runs them, with "
    "the same TMPDIR"
)


class WatchedCluster:
    """The child process, which answers one request at a time; ``address`` is that of the cluster."""

    def __init__(self) -> None:
        if find_spec("ray") is None:
            raise PlanError(
                'Ray is not installed here: pip install "windrow[ray]". Runs on threads are seen from their own '
                "process only, with stats() and options(progress=True)"
            )
        self._process = subprocess.Popen(
            [sys.executable, "-c", _RUN],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            # Ctrl-C is for this process, which then ends the child
            start_new_session=True,
        )
        self._answers: queue.Queue[str] = queue.Queue()
        self._rejected = threading.Event()
        self._threads = [
            threading.Thread(target=target, daemon=True) for target in (self._read_answers, self._read_errors)
        ]
        for thread in self._threads:
            thread.start()
        self._send(sys.path)
        self._has_token = False
        self.address = ""

    def connect(self, address: str | None) -> None:
        """Connect to the cluster at an address, by default the only one of this machine."""
        found = self._ask("find", _START_SECONDS, address=address)
        self.address, self._has_token = found["address"], found["token"]
        self._ask("connect", _CONNECT_SECONDS)

    def status(self) -> dict[str, Any]:
        """What runs there, and what the last one that has ended was, if nothing runs."""
        return self._ask("status", _ANSWER_SECONDS)

    def spans(self, pipeline: str | None) -> dict[str, Any]:
        """The spans of the timeline of one pipeline."""
        return self._ask("spans", _SPANS_SECONDS, pipeline=pipeline)

    def close(self) -> None:
        """End the child."""
        with suppress(OSError):
            self._process.stdin.close()  # type: ignore[union-attr]
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for thread in self._threads:
            thread.join(_END_SECONDS)
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

    def _send(self, value: Any) -> None:
        assert self._process.stdin is not None
        # a child that has ended says why elsewhere
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(value) + "\n")
            self._process.stdin.flush()

    def _ask(self, do: str, seconds: float, **arguments: Any) -> dict[str, Any]:
        self._send({"do": do, **arguments})
        deadline = time.monotonic() + seconds
        while True:
            try:
                line = self._answers.get(timeout=_POLL_SECONDS)
                break
            except queue.Empty:
                if self._rejected.is_set() and do == "connect":
                    self._process.kill()
                    raise PlanError(self._describe_rejection()) from None
                if time.monotonic() > deadline:
                    self._process.kill()
                    raise StallError(
                        f"{self._where()} has not answered within {seconds:.0f} s: it has ended, or is overloaded"
                    ) from None
        if not line:
            # what it printed last
            self._threads[1].join(_END_SECONDS)
            if self._rejected.is_set():
                raise PlanError(self._describe_rejection())
            code = self._process.wait()
            ended = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            raise StallError(f"the connection to {self._where()} has ended ({ended}): the cluster is gone")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise (
                PlanError(_shorten(answer["error"])) if do != "connect" else self._make_error(answer["error"])
            )
        return answer

    def _make_error(self, text: str) -> PlanError | StallError:
        """An error for what Ray says where it cannot connect."""
        if self._rejected.is_set():
            return PlanError(self._describe_rejection())
        if "no authentication token was found" in text:
            return PlanError(f"RAY_AUTH_MODE=token is set, and no token was found. {_GIVE_TOKEN}")
        _, mismatch, versions = text.partition("Version mismatch: ")
        if mismatch:
            return PlanError(
                f"{self._where()} has another version of Ray or Python than this command: "
                f"{versions.partition(')')[0].strip()}. Run it in the environment of the job"
            )
        return StallError(_shorten(text))

    def _where(self) -> str:
        return f"the Ray cluster at {self.address}" if self.address else "Ray"

    def _describe_rejection(self) -> str:
        given = "does not accept this token" if self._has_token else "asks for a token"
        return f"{self._where()} {given}. {_GIVE_TOKEN}"

    def _read_answers(self) -> None:
        assert self._process.stdout is not None
        with suppress(ValueError, OSError):
            for line in self._process.stdout:
                self._answers.put(line)
        self._answers.put("")

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        with suppress(ValueError, OSError):
            for line in self._process.stderr:
                if any(each in line for each in _WRONG_TOKEN):
                    self._rejected.set()


def _shorten(text: str) -> str:
    return " ".join(text.split())


@contextmanager
def watching(address: str | None) -> Iterator[WatchedCluster]:
    """Connect to a cluster for the time of a block."""
    cluster = WatchedCluster()
    try:
        cluster.connect(address)
        yield cluster
    finally:
        cluster.close()
