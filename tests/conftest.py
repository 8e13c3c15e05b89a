"""Fixtures and profiles for all tests."""

from __future__ import annotations

import gc
import os
import signal
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.library_versions import RAY_UNCLOSED, TORCH_WARNINGS

# imported here, since a module that is first imported in a test would keep what the test has replaced
from windrow.dataset.sources import from_memory as from_memory
from windrow.pipeline.executors.choose_executor import ray_is_initialized

REPOSITORY = Path(__file__).resolve().parent.parent
FLIGHTS = REPOSITORY.parent / "shared" / "data" / "flights-3m.parquet"
STORE_BYTES = 300 * 2**20
# the files that take longest, longest first
LONG_FILES = (
    "tests/laws/test_ray.py",
    "tests/pipeline/executors/test_ray.py",
    "tests/sanitized/test_sanitized.py",
    "tests/end_to_end/test_torchrun.py",
    "tests/pipeline/executors/test_gang.py",
    "tests/test_docs.py",
    "tests/pipeline/executors/test_actor_pools.py",
    "tests/end_to_end/test_release.py",
    "tests/end_to_end/test_memory.py",
    "tests/laws/test_injected.py",
    "tests/laws/test_threads.py",
    "tests/pipeline/loaders/test_torch_dataset.py",
    "tests/pipeline/loaders/test_balanced_torch_dataset.py",
    "tests/test_wheel.py",
)
# their tests start Rays of their own
OWN_RAY_FILES = (
    "tests/bench/test_executors.py",
    "tests/bench/test_stacks.py",
    "tests/end_to_end/test_driver_death.py",
    "tests/end_to_end/test_exit.py",
    "tests/end_to_end/test_torchrun.py",
    "tests/pipeline/executors/test_ray_start.py",
    "tests/pipeline/executors/test_start_ray.py",
    "tests/test_readme.py",
)
MARK_OF_FIXTURE = {"ray_local": "ray", "ray_cluster": "cluster"}

# the health check on speed is off because it would be a timing assertion
settings.register_profile(
    "ci",
    derandomize=True,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=15,
)
# fifty times as many examples as in CI, which draws the same ones each time; ten thousand did not finish
# in a night on two cores
settings.register_profile("nightly", settings.get_profile("ci"), derandomize=False, max_examples=1_000)
# under the sanitizers every example takes ten times as long
settings.register_profile("sanitized", settings.get_profile("ci"), max_examples=10)
settings.load_profile("ci")

# the second is the default from Ray 2.57 on; versions before it warn of that at each start
RAY_ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
os.environ.update(RAY_ENVIRONMENT)
# idle processes of Ray, about ten a session, use a third less CPU than with a report every ten seconds
os.environ.update({"RAY_metrics_report_interval_ms": "60000"})
# at Ray's own niceness of 15, its processes get a thirtieth of a core beside two busy tests, and starts time out
os.environ.update({"RAY_worker_niceness": "0"})


def pytest_configure(config: pytest.Config) -> None:
    """Ignore what older versions of Ray leave open, and of what older versions of torch warn."""
    for warning in RAY_UNCLOSED + TORCH_WARNINGS:
        config.addinivalue_line("filterwarnings", warning)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by the Ray that they use, before pytest selects by mark."""
    for item in items:
        if item.path.relative_to(REPOSITORY).as_posix() in OWN_RAY_FILES:
            item.add_marker("ray")
        for fixture, mark in MARK_OF_FIXTURE.items():
            if fixture in getattr(item, "fixturenames", ()):
                item.add_marker(mark)
        if any(isinstance(value, str) and value == "ray" for value in _params(item)):
            item.add_marker("ray")
            if item.get_closest_marker("ray_at_night"):
                item.add_marker("nightly")
    # a worker takes the next file when it is free: long ones at the end would keep one of them busy alone
    items.sort(key=lambda item: _starts_late(item.path))


def pytest_collection_finish() -> None:
    """Keep what importing and collecting made out of garbage collections, each of which took 0.35 s for it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def _short_collections() -> Iterator[None]:
    """Keep what outlives a module, such as imports of its tests, out of garbage collections."""
    yield
    gc.collect()
    gc.freeze()


def _params(item: pytest.Item) -> list[Any]:
    return list(item.callspec.params.values()) if hasattr(item, "callspec") else []


def _starts_late(path: Path) -> int:
    name = path.relative_to(REPOSITORY).as_posix()
    return LONG_FILES.index(name) if name in LONG_FILES else len(LONG_FILES)


@pytest.fixture(autouse=True)
def _auto_is_threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """Make threads the default executor of tests without a Ray fixture, even if an earlier test started Ray."""

    def is_requested() -> bool:
        return ray_is_initialized() and not MARK_OF_FIXTURE.keys().isdisjoint(request.fixturenames)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("windrow.pipeline.executors.choose_executor.ray_is_initialized", is_requested)
        yield


@pytest.fixture(autouse=True)
def _no_handler_of_dead_children() -> Iterator[None]:
    """Remove torch's handler of children that end: it raises in whatever runs when one of a test before dies."""
    yield
    if callable(signal.getsignal(signal.SIGCHLD)):
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


@pytest.fixture(scope="session")
def flights_path() -> Path:
    """Return the path of three million real flights; skip the test if the file is missing."""
    if not FLIGHTS.exists():
        pytest.skip("flights-3m.parquet is not in ../shared/data next to this checkout")
    return FLIGHTS


@pytest.fixture(scope="session")
def ray_local() -> Iterator[Any]:
    """Provide one local Ray for all tests of this process: 4 logical CPUs, an object store of 300 MiB."""
    import ray

    for attempt in range(3):
        try:
            ray.init(
                address="local",
                num_cpus=4,
                object_store_memory=STORE_BYTES,
                include_dashboard=False,
                log_to_driver=False,
                logging_level="ERROR",
            )
            break
        except Exception as error:
            # Ray gives a node 30 seconds, which a busy machine can need
            if attempt == 2 or "timed out during startup" not in str(error):
                raise
            ray.shutdown()
        with warnings.catch_warnings():
            # it has killed the processes of that try, and not waited for their ends
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()
    try:
        yield ray
    finally:
        ray.shutdown()


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[Any]:
    """Provide three raylets on this machine with 2 logical CPUs each; the driver is on the first."""
    import ray
    from ray.cluster_utils import Cluster

    if ray.is_initialized():
        pytest.fail("these tests need a process without the shared Ray: pytest -m cluster")
    node: dict[str, Any] = {"num_cpus": 2, "object_store_memory": STORE_BYTES}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    try:
        for _ in range(2):
            cluster.add_node(**node)
        cluster.wait_for_nodes()
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()
