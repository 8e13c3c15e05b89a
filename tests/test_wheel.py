"""``make wheel``: what the wheel contains, where it installs, and that it works in an empty environment."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

import windrow
from tests.conftest import REPOSITORY

SOURCES = ("LICENSE", "Makefile", "README.md", "constraints.txt", "pyproject.toml", "setup.py", "windrow")
LIBRARIES = {"windrow/io/parquet/_decode.abi3.so", "windrow/shuffle/kernels/_kernels.abi3.so"}
SCRIPT = Path(__file__).with_name("wheel_script.py")
# those that classifiers in pyproject.toml name
PYTHONS = ("python3.10", "python3.11", "python3.12", "python3.13", "python3.14")
RUNS = "import ensurepip, sys, venv; print(*sys.version_info[:2], sep='.')"

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="wheels are built on Linux"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="wheels need a C compiler"),
    pytest.mark.skipif(shutil.which("make") is None, reason="wheels need make"),
]


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build in a copy, because building writes next to the sources."""
    checkout = tmp_path_factory.mktemp("checkout")
    for name in SOURCES:
        source = REPOSITORY / name
        if source.is_dir():
            shutil.copytree(source, checkout / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        else:
            shutil.copy(source, checkout / name)
    # -o: make must not rebuild the environment, although the copy's files are newer
    make = ["make", "wheel", f"VENV={sys.prefix}", "-o", f"{sys.prefix}/.installed"]
    done = subprocess.run(make, cwd=checkout, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return checkout / "dist"


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (built,) = dist.glob("*.whl")
    return built


@pytest.mark.nightly
def test_wheel_is_for_every_python_on_manylinux(wheel: Path) -> None:
    name, version, python, abi, platform = wheel.stem.split("-")
    assert (name, version, python, abi) == ("windrow", windrow.__version__, "py3", "none")
    assert "manylinux" in platform


@pytest.mark.nightly
def test_contents(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        shipped = {name for name in archive.namelist() if ".dist-info/" not in name and name[-1] != "/"}
        licences = [name for name in archive.namelist() if name.endswith("LICENSE")]
    sources = {path.relative_to(REPOSITORY).as_posix() for path in (REPOSITORY / "windrow").rglob("*.py")}
    assert shipped == sources | LIBRARIES | {"windrow/py.typed", "windrow/__init__.pyi"}
    assert licences


@pytest.mark.nightly
def test_sdist_has_all_sources(dist: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        shipped = {name.partition("/")[2] for name in archive.getnames()}
    for pattern in ("*.py", "*.pyi", "*.c", "*.h"):
        for path in (REPOSITORY / "windrow").rglob(pattern):
            assert path.relative_to(REPOSITORY).as_posix() in shipped


def _find_python(name: str) -> str:
    """The path of an interpreter that really runs and can make environments; skip the test if there is none."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not on the PATH")
    tried = subprocess.run([found, "-c", RUNS], capture_output=True, text=True, check=False)
    if tried.stdout.strip() != name.removeprefix("python"):
        pytest.skip(f"{name} on the PATH does not run, or has no venv module")
    return found


@pytest.fixture(scope="module")
def order(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The order of rows here, which is that of every Python."""
    return _run(Path(sys.executable), tmp_path_factory.mktemp("here"), PYTHONPATH=str(REPOSITORY))["order"]


def _environment() -> dict[str, str]:
    """The variables of this process, without those that would show the checkout's modules to another Python."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def _run(python: Path, folder: Path, **variables: str) -> Any:
    done = subprocess.run(
        [python, "-W", "error", SCRIPT],
        cwd=folder,
        env=_environment() | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.nightly
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", PYTHONS)
def test_wheel_works_in_an_empty_environment(name: str, wheel: Path, order: Any, tmp_path: Path) -> None:
    subprocess.run([_find_python(name), "-m", "venv", str(tmp_path / "venv")], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--only-binary", ":all:"]
    pip += ["--constraint", str(REPOSITORY / "constraints.txt"), str(wheel)]
    installed = subprocess.run(pip, env=_environment(), capture_output=True, text=True, check=False)
    assert installed.returncode == 0, installed.stderr
    found = _run(python, tmp_path)
    assert f"python{'.'.join(map(str, found['python']))}" == name
    assert found["file"].startswith(str(tmp_path))
    assert found["order"] == order
