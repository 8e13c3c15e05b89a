"""The import contract: each of its rules detects a violation."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import grimp
import pytest

from tests.conftest import REPOSITORY

GUARDED = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    "
LAZY = "def _lazy() -> None:\n    "

VIOLATIONS = {
    "core knows io": ("windrow/core/violation.py", "import windrow.io", "layers"),
    "core knows the public names": ("windrow/core/violation.py", LAZY + "import windrow", "names"),
    "io knows shuffle": ("windrow/io/violation.py", "import windrow.shuffle", "layers"),
    "shuffle knows io": ("windrow/shuffle/violation.py", "import windrow.io", "layers"),
    "shuffle knows pipeline": ("windrow/shuffle/violation.py", "import windrow.pipeline", "layers"),
    "pipeline knows dataset": ("windrow/pipeline/violation.py", "import windrow.dataset", "layers"),
    "dataset knows cli": ("windrow/dataset/violation.py", LAZY + "import windrow.cli", "layers"),
    "only for types": ("windrow/shuffle/violation.py", GUARDED + "import windrow.pipeline", "layers"),
    "within a function": ("windrow/shuffle/violation.py", LAZY + "import windrow.pipeline", "layers"),
    "tasks know plans": ("windrow/pipeline/tasks/violation.py", "import windrow.pipeline.plan", "floors"),
    "shards know exchanges": (
        "windrow/pipeline/shard/violation.py",
        LAZY + "import windrow.pipeline.exchange",
        "floors",
    ),
    "plans know executors only for types": (
        "windrow/pipeline/plan/violation.py",
        GUARDED + "import windrow.pipeline.executors",
        "floors",
    ),
    "a cycle in a room": (
        "windrow/pipeline/tasks/cache/violation.py",
        GUARDED + "import windrow.pipeline.tasks.map_task",
        "cycles",
    ),
    "files know parquet": (
        "windrow/io/formats/violation.py",
        LAZY + "import windrow.io.parquet.footers",
        "io-floors",
    ),
    "sinks know formats": (
        "windrow/io/sinks/violation.py",
        "import windrow.io.formats.block_files",
        "io-floors",
    ),
    "a room of io on no floor": ("windrow/io/violation.py", "", "io-floors"),
    "kernels know orders": (
        "windrow/shuffle/kernels/violation.py",
        "import windrow.shuffle.order.permutation",
        "io-cycles",
    ),
    "a room on no floor": ("windrow/pipeline/violation.py", "", "floors"),
    "transforms know what both have": (
        "windrow/dataset/transforms/violation.py",
        LAZY + "import windrow.dataset.readable",
        "dataset",
    ),
    "writes know sources only for types": (
        "windrow/dataset/write/violation.py",
        GUARDED + "import windrow.dataset.sources",
        "dataset",
    ),
    "a module on no floor of datasets": ("windrow/dataset/violation.py", "", "dataset"),
    "a package in no layer": ("windrow/violation.py", "", "layers"),
    "ray in another executor": ("windrow/pipeline/executors/violation.py", LAZY + "import ray.util", "ray"),
    "torch in another file": ("windrow/pipeline/violation.py", LAZY + "import torch", "torch"),
    "torch only for types": ("windrow/dataset/violation.py", GUARDED + "import torch.utils.data", "torch"),
    "fsspec in another file": ("windrow/io/violation.py", LAZY + "import fsspec", "fsspec"),
    "a table's library in another file": (
        "windrow/io/formats/violation.py",
        LAZY + "import deltalake",
        "tables",
    ),
    "a framework by name": ("windrow/dataset/violation.py", LAZY + "import polars", "frameworks"),
    "trainers know adapters": ("bench/training/violation.py", LAZY + "import bench.peers", "bench"),
    "bench in the package": ("windrow/pipeline/violation.py", LAZY + "import bench", "shipped"),
}

# what the contracts of cycles print: they name folders
CYCLES = {"cycles": "-> .map_task", "io-cycles": "No cycles are allowed in windrow.shuffle"}


def _lint(directory: Path, contract: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-c",
        "from importlinter.cli import lint_imports_command; lint_imports_command()",
        "--no-cache",
        "--no-logo",
        "--contract",
        contract,
    ]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Copy the files that the contract checks."""
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path)
    for package in ("windrow", "bench"):
        shutil.copytree(REPOSITORY / package, tmp_path / package)
    return tmp_path


@pytest.mark.nightly
@pytest.mark.parametrize("contract", sorted({contract for *_, contract in VIOLATIONS.values()}))
def test_contract_holds(checkout: Path, contract: str) -> None:
    result = _lint(checkout, contract)
    assert result.returncode == 0, result.stdout


@pytest.mark.nightly
@pytest.mark.parametrize("violation", VIOLATIONS)
def test_violation_is_found(checkout: Path, violation: str) -> None:
    where, line, contract = VIOLATIONS[violation]
    (checkout / where).write_text(line + "\n", encoding="utf-8")
    result = _lint(checkout, contract)
    assert result.returncode == 1, result.stdout
    assert CYCLES.get(contract, "violation") in result.stdout


@pytest.mark.parametrize("above", ["windrow.dataset", "windrow.io", "windrow.pipeline"])
def test_rooms_state_what_they_may_import(above: str) -> None:
    """The first file of each room lists what it imports of those beside it, and no others."""
    graph = grimp.build_graph("windrow", cache_dir=None)
    for room in sorted(name for name in graph.find_children(above) if graph.find_children(name)):
        text = importlib.import_module(room).__doc__ or ""
        stated = re.search(r"^May import: (.+)\.$\s^In: .+$\s^Out: .+$", text, re.MULTILINE)
        assert stated, f"{room}: say on three lines what it may import, what comes in and what goes out"
        imported = {
            ".".join(found.split(".")[:3])
            for module in (room, *graph.find_descendants(room))
            for found in graph.find_modules_directly_imported_by(module)
            if found.startswith(f"{above}.")
        } - {room}
        names = sorted(name.removeprefix(f"{above}.") for name in imported)
        assert stated[1] == (", ".join(names) or "no other room"), room


def test_folders_of_the_benchmark_state_what_they_may_import() -> None:
    """The first file of each folder lists the folders that it imports, and no others."""
    graph = grimp.build_graph("bench", cache_dir=None)
    folders = [name for name in graph.find_children("bench") if graph.find_descendants(name)]
    for folder in folders:
        text = importlib.import_module(folder).__doc__ or ""
        imported = {
            found.split(".")[1]
            for module in (folder, *graph.find_descendants(folder))
            for found in graph.find_modules_directly_imported_by(module)
        } - {folder.split(".")[1]}
        stated = f"May import: {', '.join(sorted(imported)) or 'no other folder'}."
        assert stated in text, f"{folder}: {stated}"
