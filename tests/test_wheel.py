"""The wheel contains the package and its type marker, and no development files."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import windrow
from tests.conftest import REPOSITORY

SOURCES = ("LICENSE", "README.md", "bench", "pyproject.toml", "tests", "windrow")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a wheel from a copy, because building writes next to the sources."""
    checkout, out = tmp_path_factory.mktemp("checkout"), tmp_path_factory.mktemp("out")
    for name in SOURCES:
        source = REPOSITORY / name
        if source.is_dir():
            shutil.copytree(source, checkout / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        else:
            shutil.copy(source, checkout / name)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--wheel-dir", str(out), str(checkout)], check=True, capture_output=True)
    (built,) = out.glob("*.whl")
    return built


def test_name_and_version(wheel: Path) -> None:
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert wheel.name.startswith(f"windrow-{windrow.__version__}-{tag}-{tag}-")


def test_contents(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        shipped = {name for name in archive.namelist() if ".dist-info/" not in name}
        licences = [name for name in archive.namelist() if name.endswith("LICENSE")]
    sources = {path.relative_to(REPOSITORY).as_posix() for path in (REPOSITORY / "windrow").rglob("*.py")}
    libraries = {name for name in shipped if name.endswith(".so")}
    assert shipped - libraries == sources | {"windrow/py.typed"}
    built = {name.split(".")[0] for name in libraries}
    libraries_built = {"windrow/io/parquet/_decode", "windrow/shuffle/kernels/_kernels"}
    assert built == (libraries_built if shutil.which("cc") else set())
    assert licences
