"""``make wheel``: what the wheel contains, where it installs, and that it works in an empty environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import windrow
from tests.conftest import REPOSITORY

SOURCES = ("LICENSE", "Makefile", "README.md", "constraints.txt", "pyproject.toml", "setup.py", "windrow")
LIBRARIES = {"windrow/io/parquet/_decode.abi3.so", "windrow/shuffle/kernels/_kernels.abi3.so"}
USE = """
import pyarrow as pa, pyarrow.parquet as pq, windrow
from windrow.core.native_libraries import missing_libraries
pq.write_table(pa.table({"x": range(1_000)}), "x.parquet")
pipe = windrow.read_parquet("x.parquet").repeat(2).random_shuffle_each_window(seed=7)
rows = [x for batch in pipe.iter_batches(batch_size=100) for x in batch["x"].tolist()]
assert sorted(rows) == sorted([*range(1_000), *range(1_000)])
assert all(hasattr(windrow, name) for name in windrow.__all__) and len(windrow.__all__) > 50
print(windrow.__file__, missing_libraries())
"""

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


@pytest.mark.timeout(300)
@pytest.mark.nightly
def test_wheel_works_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    pip = [
        str(python),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--constraint",
        str(REPOSITORY / "constraints.txt"),
    ]
    installed = subprocess.run([*pip, str(wheel)], capture_output=True, text=True, check=False)
    assert installed.returncode == 0, installed.stderr
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    used = subprocess.run(
        [python, "-W", "error", "-c", USE],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert used.returncode == 0, used.stderr
    assert used.stdout.startswith(str(tmp_path)), used.stdout
    assert used.stdout.endswith("()\n"), used.stdout
