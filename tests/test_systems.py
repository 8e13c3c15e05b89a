"""Windrow on macOS and Windows, as far as Linux can show it: no module uses what they lack, and all runs without."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPOSITORY
from tests.systems.foreign import VARIABLE
from tests.systems.names import SYSTEMS, find_missing, is_missing
from windrow.core.native_libraries import missing_libraries

PACKAGE = REPOSITORY / "windrow"
STARTUP = REPOSITORY / "tests" / "systems" / "startup"
COMPILED = pytest.mark.skipif(bool(missing_libraries()), reason="built without a C compiler")
# tests that run on other systems too at night
OTHER_TESTS = (
    "tests/io", "tests/dataset", "tests/cli", "tests/pipeline/tasks", "tests/pipeline/shard", "tests/pipeline/exchange",
    "tests/laws/test_threads.py", "tests/laws/test_caches.py", "tests/laws/test_resume.py",
)  # fmt: skip
# those of them that test what these systems lack, and those that use Linux's calls themselves
LINUX_TESTS = {
    "darwin": (
        # processes share no disk cache of a job, nor do they wait for one another's reads
        "tests/io/s3/test_cache.py::test_epoch_two_makes_no_request",
        "tests/pipeline/tasks/cache/test_cached_reader.py::test_disk_cache_is_shared_by_readers",
        "tests/pipeline/tasks/cache/test_faults.py::test_each_call_fails",
        "tests/pipeline/tasks/cache/test_shared_folder.py::test_killed_reader_releases_its_block",
    ),
    "win32": (
        # worker processes, and replicas of a shard
        "tests/dataset/sources/test_joined_mixture.py::test_shards_and_replicas_read_one_mixture",
        "tests/dataset/sources/test_missed_shares.py::test_every_replica_hears_of_it_at_the_end",
        "tests/dataset/sources/test_missed_shares.py::test_replicas_hear_of_a_change_of_shares_that_is_missed",
        "tests/dataset/sources/test_mixture.py::test_replicas_get_the_same_batches_also_after_a_change",
        "tests/dataset/sources/test_packed_mixture.py::test_replicas_get_the_same_sequences",
        "tests/dataset/transforms/test_media_methods.py::test_a_pool_decodes_the_same_rows",
        "tests/dataset/transforms/test_media_methods.py::test_worker_processes_make_the_same_rows",
        "tests/dataset/transforms/test_slow_stages.py::test_a_slow_stage_holds_back_a_fast_one",
        "tests/dataset/write/test_resumed_write.py::test_a_class_that_makes_no_object_fails_the_write_and_no_row",
        "tests/dataset/write/test_write_workers.py::test_a_model_in_a_pool_is_loaded_by_its_workers_alone",
        "tests/pipeline/shard/test_replicas.py",
        "tests/pipeline/shard/test_token_budget.py::test_replicas_of_which_one_selects_the_lists_alone_get_them_cut",
        "tests/pipeline/tasks/test_failed_rows.py::test_the_first_row_that_fails_is_named_in_processes_too",
        # files that are mapped without a descriptor, and forks
        "tests/io/storage/test_forked_filesystems.py",
        "tests/io/storage/test_mapped_files.py::test_a_file_is_mapped_once_and_keeps_no_descriptor",
        "tests/io/storage/test_mapped_files.py::test_the_files_of_all_datasets_stay_within_a_limit",
        # folders in use cannot be removed
        "tests/io/adapters/test_temporary_folder.py::test_a_sweep_while_a_folder_is_made_does_not_delete_it",
        "tests/pipeline/tasks/cache/test_cached_reader.py::test_disk_cache_is_shared_by_readers",
        "tests/pipeline/tasks/cache/test_disk_cache.py::test_late_task_of_an_ended_job_caches_nothing_and_reports_no_failure",
        "tests/pipeline/tasks/cache/test_shared_folder.py::test_own_removal_of_the_folder_differs_from_removal_by_others",
        # shared memory that torch and Python remove while it is open, and a fork
        "tests/dataset/test_names_elsewhere.py::test_calls_work_as_written[shard.as_torch_dataset(batch_size=32)]",
        "tests/io/parquet/test_page_index.py::test_a_forked_process_does_not_wait_for_a_search_of_its_parent",
        "tests/dataset/test_pack.py::test_dataloader_workers_share_the_sequences",
        # a limit of open files, and sessions of processes
        "tests/cli/test_doctor.py::test_low_limit_of_open_files",
        "tests/cli/test_doctor.py::test_probe_that_hangs_is_killed",
        # locks and pipes of the tests' own
        "tests/pipeline/tasks/cache/test_persistent_store.py::test_pipe_in_place_of_a_file_is_corrupt_and_does_not_block",
        "tests/pipeline/tasks/cache/test_shared_folder.py::test_lock_that_others_never_release_is_an_error",
    ),
}
# the modules that call what some systems lack
WALL = PACKAGE / "core" / "system"
# What Windows has too, and does otherwise; and what all modules use instead.
OTHERWISE = {
    ("os", "open"): "it takes files for text: system.files.open_file",
    ("os", "rename"): "it does not replace files: os.replace",
    ("os", "symlink"): "it needs a privilege: system.files.write_link",
    ("os", "readlink"): "see os.symlink: system.files.read_link",
    ("os", "kill"): "all signals end the process: system.processes.kill_processes",
    ("mmap", "mmap"): "its arguments differ: system.memory.anonymous_memory, or access= alone",
    ("ctypes", "CDLL"): "it does not take None: system.memory.c_function, or the path of a library",
}
# modules that call it so that it works everywhere
FINE = {
    ("pipeline/tasks/cache/system_calls.py", "mmap.mmap"),
    ("core/native_libraries.py", "ctypes.CDLL"),
    ("io/parquet/decoder_library.py", "ctypes.CDLL"),
}
# paths of Linux, and the modules that go on without them
LINUX_PATHS = ("/proc", "proc/", "/sys/", "/dev/")
DO_WITHOUT = {"core/machine.py", "cli/checks.py"}


def find_problems(source: str, name: str) -> list[str]:
    """What a module of windrow uses that macOS or Windows lack, or do otherwise."""
    tree = ast.parse(source)
    modules = dict(_modules(tree))
    found = [
        f"{name}: {module}, not on {system}" for module in modules.values() for system in _lacking(module)
    ]
    for node in ast.walk(tree):
        for module, attribute in _uses(node, modules):
            systems = [SYSTEMS[each] for each in SYSTEMS if attribute in find_missing(module, each)]
            what = f"{name}: {module}.{attribute}"
            found += [f"{what}, not on {system}" for system in systems]
            if (module, attribute) in OTHERWISE and (name, f"{module}.{attribute}") not in FINE:
                found.append(f"{what}, on Windows {OTHERWISE[module, attribute]}")
        if isinstance(node, ast.Call) and _lacks_encoding(node):
            found.append(f"{name}: {ast.unparse(node)}, without encoding=")
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node.value.startswith(LINUX_PATHS)
            and name not in DO_WITHOUT
        ):
            found.append(f"{name}: {node.value}, not on macOS")
    return found


def _lacking(module: str) -> list[str]:
    return [SYSTEMS[each] for each in SYSTEMS if is_missing(module, each)]


def _modules(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Imported modules, by their local names; those of which only names are imported, by themselves."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.asname or alias.name, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield f"from {node.module}", node.module


def _uses(node: ast.AST, modules: dict[str, str]) -> Iterator[tuple[str, str]]:
    """The names that a node takes from modules."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
        yield modules[node.value.id], node.attr
    elif isinstance(node, ast.ImportFrom) and node.module is not None:
        yield from ((node.module, alias.name) for alias in node.names)
    elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr"):
        module, name = ast.unparse(node.args[0]), node.args[1]
        if module in modules and isinstance(name, ast.Constant):
            yield modules[module], str(name.value)


def _lacks_encoding(node: ast.Call) -> bool:
    """Whether a call opens a file as text in the encoding of the system, on Windows no UTF-8."""
    called = ast.unparse(node.func)
    given = [*node.args, *(keyword.value for keyword in node.keywords if keyword.arg == "mode")]
    if called.endswith((".read_text", ".write_text")):
        takes = called.endswith(".write_text") + 1
        return len(node.args) < takes and not _has_encoding(node) and called != "windrow.read_text"
    if called not in ("open", "os.fdopen") or _has_encoding(node):
        return False
    return not any(isinstance(each, ast.Constant) and "b" in str(each.value) for each in given[1:])


def _has_encoding(node: ast.Call) -> bool:
    return any(keyword.arg == "encoding" for keyword in node.keywords)


def test_no_module_but_those_of_one_folder_uses_what_a_system_lacks() -> None:
    sources = [path for path in sorted(PACKAGE.rglob("*.py")) if WALL not in path.parents]
    assert len(sources) > 300
    names = [(path, path.relative_to(PACKAGE).as_posix()) for path in sources]
    assert [each for path, name in names for each in find_problems(path.read_text("utf-8"), name)] == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import fcntl", "fcntl, not on Windows"),
        ("def f():\n    from resource import getrusage", "resource, not on Windows"),
        ("import os as _os\n_os.pread(1, 2, 3)", "os.pread, not on Windows"),
        ("from os import memfd_create", "os.memfd_create, not on macOS"),
        ("import os\ngetattr(os, 'sched_getaffinity')", "os.sched_getaffinity, not on macOS"),
        ("import signal\nsignal.SIGHUP", "signal.SIGHUP, not on Windows"),
        ("import socket\nsocket.AF_UNIX", "socket.AF_UNIX, not on Windows"),
        ("import mmap\nmmap.MAP_SHARED", "mmap.MAP_SHARED, not on Windows"),
        ("import os\nos.open('x', os.O_RDONLY)", "os.open, on Windows it takes files for text"),
        ("import ctypes\nctypes.CDLL(None)", "ctypes.CDLL, on Windows it does not take None"),
        ("open('x')", "open('x'), without encoding="),
        ("open('x', mode='w')", "open('x', mode='w'), without encoding="),
        ("path.read_text()", "path.read_text(), without encoding="),
        ("x = '/proc/self/maps'", "/proc/self/maps, not on macOS"),
    ],
)
def test_uses_are_found(source: str, found: str) -> None:
    assert any(found in problem for problem in find_problems(source, "x.py"))


def test_what_all_systems_have_is_no_problem() -> None:
    source = (
        "import os, mmap\nos.replace(1, 2)\nmmap.ACCESS_READ\nopen('x', 'rb')\nopen('x', encoding='utf-8')"
    )
    assert find_problems(source, "x.py") == []


# --- runs ------------------------------------------------------------------------------


def _environment(system: str, temporary: Path) -> dict[str, str]:
    """Of a process that may be on another system, whose locks are not those of processes here."""
    found = {**os.environ, "TMPDIR": str(temporary)}
    if system == "linux":
        return found
    paths = os.pathsep.join(filter(None, [str(STARTUP), os.environ.get("PYTHONPATH")]))
    # the encoding of Windows in western Europe
    return {**found, "PYTHONPATH": paths, VARIABLE: system, "PYTHONIOENCODING": "cp1252"}


def _run(folder: Path, system: str, libraries: str) -> dict[str, Any]:
    folder.mkdir()
    command = [sys.executable, "-W", "error", "-m", "tests.systems.scenario", str(folder), libraries]
    environment = _environment(system, folder)
    done = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    # temporary folders are removed as the process ends
    assert list(folder.glob("windrow-*")) == []
    found: dict[str, Any] = json.loads((folder / "found.json").read_text("utf-8"))
    return found


@pytest.fixture(scope="module")
def on_linux(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `tests.systems.scenario` finds here."""
    return _run(tmp_path_factory.mktemp("linux") / "run", "linux", "there")


@pytest.mark.parametrize(
    ("system", "libraries"),
    [
        ("darwin", "there"),
        pytest.param("darwin", "hidden", marks=pytest.mark.nightly),
        ("win32", "hidden"),
        pytest.param("win32", "there", marks=[pytest.mark.nightly, COMPILED]),
    ],
)
def test_the_same_rows_as_on_linux(
    system: str, libraries: str, on_linux: dict[str, Any], tmp_path: Path
) -> None:
    found = _run(tmp_path / "run", system, libraries)
    processes = found.pop("processes")
    assert found == {name: value for name, value in on_linux.items() if name != "processes"}
    assert on_linux["cache"] == []
    assert on_linux["hits, cache disk"]
    if system == "win32":
        assert "not supported on Windows: leave out compute=" in processes
    else:
        assert processes is True


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("system", SYSTEMS)
def test_other_tests_pass(system: str, tmp_path: Path) -> None:
    """Tests of reading, writing, datasets, caches and the guarantees on threads, on another system."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["-m", "not ray and not cluster and not nightly", "--numprocesses", "2"]
    # with another worker in the place of one that dies, pytest-xdist can wait forever
    command += ["--dist", "loadfile", "--max-worker-restart", "0"]
    command += [each for test in LINUX_TESTS[system] for each in ("--deselect", test)]
    done = subprocess.run(
        [*command, *OTHER_TESTS],
        cwd=REPOSITORY,
        env=_environment(system, tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-20_000:]


@pytest.mark.nightly
@pytest.mark.parametrize("system", SYSTEMS)
def test_types_on_other_systems(system: str, tmp_path: Path) -> None:
    """The type checker knows which functions each system has, and their arguments."""
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--platform",
        system,
        "--cache-dir",
        str(tmp_path),
        "-p",
        "windrow",
    ]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
