"""The child that watches a cluster: whatever Ray does to it, the command has an answer or an error in bounded time."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from windrow.cli import watched_cluster as module
from windrow.cli.main import main
from windrow.cli.watched_cluster import WatchedCluster, watching
from windrow.core.errors import PlanError, StallError

# answers the search for a cluster, and then does what a case says
_FOUND = "import sys, json, os, time\nsys.stdin.readline(); sys.stdin.readline()\n"
_FOUND += "print(json.dumps({'address': 'here:1', 'token': %r}), flush=True)\nsys.stdin.readline()\n"
_REJECTED = "print('W 1 gcs_client.cc: RPC error: InvalidAuthToken', file=sys.stderr, flush=True)\n"
_CONNECTED = "print('{}', flush=True)\nsys.stdin.readline()\n"


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_CONNECT_SECONDS", "_ANSWER_SECONDS"):
        monkeypatch.setattr(module, name, 0.5)
    monkeypatch.setattr(module, "_END_SECONDS", 0.5)


def _watch(monkeypatch: pytest.MonkeyPatch, code: str, *, token: bool = False) -> None:
    monkeypatch.setattr(module, "_RUN", _FOUND % token + code)
    with watching("here:1") as cluster:
        cluster.status()


@pytest.mark.parametrize(
    ("token", "said"), [(True, "does not accept this token"), (False, "asks for a token")]
)
@pytest.mark.parametrize("then", ["time.sleep(600)", "os.kill(os.getpid(), 11)"])
def test_a_rejected_token_is_an_error_that_says_how_to_give_it(
    monkeypatch: pytest.MonkeyPatch, token: bool, said: str, then: str
) -> None:
    # longer than the test may take: only the child's complaint can end the wait
    monkeypatch.setattr(module, "_CONNECT_SECONDS", 600.0)
    with pytest.raises(
        PlanError, match=f"the Ray cluster at here:1 {said}. Set RAY_AUTH_MODE=token, and RAY_AUTH"
    ):
        _watch(monkeypatch, _REJECTED + then, token=token)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("time.sleep(600)", "the Ray cluster at here:1 has not answered within 0 s"),
        (_CONNECTED + "time.sleep(600)", "the Ray cluster at here:1 has not answered within 0 s"),
        (
            "os.kill(os.getpid(), 11)",
            r"the connection to the Ray cluster at here:1 has ended \(signal SIGSEGV\)",
        ),
        (
            _CONNECTED + "sys.exit(3)",
            r"the connection to the Ray cluster at here:1 has ended \(exit code 3\)",
        ),
        ("print(json.dumps({'error': 'no\\nnode'}))", "no node"),
    ],
)
def test_a_child_that_hangs_or_dies_is_an_error(
    monkeypatch: pytest.MonkeyPatch, code: str, said: str
) -> None:
    if "has not answered" not in said:
        # longer than the test may take: only what the child does can end the wait
        for name in ("_CONNECT_SECONDS", "_ANSWER_SECONDS"):
            monkeypatch.setattr(module, name, 600.0)
    with pytest.raises(StallError, match=said):
        _watch(monkeypatch, code)


def test_other_versions_of_ray_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        "this process cannot connect to the Ray cluster of the job at here:1 (Version mismatch: The cluster was "
        "started with:\n Ray: 2.52.1\n Python: 3.11.4\nThis process on node 10.0.0.1 was started with:\n Ray: 2.60.0\n "
        "Python: 3.11.4\n): the cluster has ended"
    )
    with pytest.raises(
        PlanError, match=r"another version of Ray or Python than this command: The cluster was .*"
    ) as e:
        _watch(monkeypatch, f"print(json.dumps({{'error': ' '.join({text!r}.split())}}))")
    assert "Ray: 2.52.1 Python: 3.11.4 This process" in str(e.value)
    assert str(e.value).endswith("Python: 3.11.4. Run it in the environment of the job")


def test_a_missing_token_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    error = "Token authentication is enabled but no authentication token was found. Ensure that ..."
    with pytest.raises(
        PlanError, match=r"RAY_AUTH_MODE=token is set, and no token was found. Set RAY_AUTH_MODE=token"
    ):
        _watch(monkeypatch, f"print(json.dumps({{'error': {error!r}}}))")


def test_the_child_ends_with_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RUN", _FOUND % False + _CONNECTED + "time.sleep(600)")
    started: list[subprocess.Popen[str]] = []

    class Popen(subprocess.Popen[str]):
        def __init__(self, *args: object, **options: object) -> None:
            super().__init__(*args, **options)  # type: ignore[call-overload]
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Popen)
    with pytest.raises(ZeroDivisionError), watching("here:1"):
        raise ZeroDivisionError
    assert started[0].returncode is not None


def test_the_child_ends_when_this_process_is_killed(tmp_path: Path) -> None:
    """It does since its standard input ends; it has a session of its own, and gets no Ctrl-C."""
    pytest.importorskip("ray")
    cluster = WatchedCluster()
    cluster._process.stdin.close()  # type: ignore[union-attr]
    assert cluster._process.wait(60) == 0
    cluster.close()


def test_ray_that_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    assert main(["status"]) == 1
    assert 'Ray is not installed here: pip install "windrow[ray]"' in capsys.readouterr().err
