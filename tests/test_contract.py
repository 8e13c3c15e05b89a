"""The import contract is kept by the gate; here, that each of its rules can be broken."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

GUARDED = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    "
LAZY = "def _lazy() -> None:\n    "

BREACHES = {
    "core knows io": ("windrow/core/breach.py", "import windrow.io", "layers"),
    "core knows the public names": ("windrow/core/breach.py", "import windrow", "layers"),
    "io knows shuffle": ("windrow/io/breach.py", "import windrow.shuffle", "layers"),
    "shuffle knows io": ("windrow/shuffle/breach.py", "import windrow.io", "layers"),
    "shuffle knows pipeline": ("windrow/shuffle/breach.py", "import windrow.pipeline", "layers"),
    "pipeline knows dataset": ("windrow/pipeline/breach.py", "import windrow.dataset", "layers"),
    "only for types": ("windrow/shuffle/breach.py", GUARDED + "import windrow.pipeline", "layers"),
    "within a function": ("windrow/shuffle/breach.py", LAZY + "import windrow.pipeline", "layers"),
    "a package in no layer": ("windrow/breach.py", "", "layers"),
    "ray in another executor": ("windrow/pipeline/executors/breach.py", LAZY + "import ray.util", "ray"),
    "torch in another file": ("windrow/pipeline/breach.py", LAZY + "import torch", "torch"),
    "torch only for types": ("windrow/dataset/breach.py", GUARDED + "import torch.utils.data", "torch"),
    "fsspec in another file": ("windrow/io/breach.py", LAZY + "import fsspec", "fsspec"),
    "a table's library in another file": (
        "windrow/io/formats/breach.py",
        LAZY + "import deltalake",
        "tables",
    ),
    "a framework by name": ("windrow/dataset/breach.py", LAZY + "import polars", "doors"),
    "bench in the package": ("windrow/pipeline/breach.py", LAZY + "import bench", "shipped"),
}


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
    """Copy what the contract looks at."""
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path)
    shutil.copytree(REPOSITORY / "windrow", tmp_path / "windrow")
    return tmp_path


@pytest.mark.parametrize("contract", sorted({contract for *_, contract in BREACHES.values()}))
def test_kept(checkout: Path, contract: str) -> None:
    result = _lint(checkout, contract)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("breach", BREACHES)
def test_breach_is_found(checkout: Path, breach: str) -> None:
    where, line, contract = BREACHES[breach]
    (checkout / where).write_text(line + "\n", encoding="utf-8")
    result = _lint(checkout, contract)
    assert result.returncode == 1, result.stdout
    assert "breach" in result.stdout
