"""Environments of the rivals with the versions that they need, and the sample of rows that slow ones read.

``bench/peers/requirements/<name>.txt`` pins all versions. Packages in ``<name>.no-deps.txt`` are installed without
their dependencies, because these are out of date or include much that is not needed here.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from bench.data.files import Layout, make_once
from bench.training.facts import iterate_tables

_REQUIREMENTS = Path(__file__).resolve().parent / "requirements"
_GROUPS = 64


def list_requirements(name: str) -> list[Path]:
    """The requirements files of an environment, in the order of installation."""
    files = [_REQUIREMENTS / f"{name}.txt", _REQUIREMENTS / f"{name}.no-deps.txt"]
    return [file for file in files if file.exists()]


def find_version(library: str, environment: str | None) -> str:
    """The version of a library: pinned for its environment, or installed here."""
    if environment is None:
        return metadata.version(library)
    lines = "\n".join(file.read_text() for file in list_requirements(environment)).splitlines()
    return next(line for line in lines if line.startswith(f"{library}==")).partition("==")[2]


def find_python(folder: Path, name: str) -> Path:
    if not is_ready(folder, name):
        raise ValueError(
            f"there is no environment for {name} in {folder}/venvs yet: run make peers to set it up"
        )
    return _place(folder, name) / "bin" / "python"


def is_ready(folder: Path, name: str) -> bool:
    stamp = _place(folder, name) / ".installed"
    return stamp.exists() and stamp.read_text() == _digest(name)


def make_environment(folder: Path, name: str, log: Path) -> None:
    place = _place(folder, name)
    pip = [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    commands = [[sys.executable, "-m", "venv", "--clear", str(place)]]
    for file in list_requirements(name):
        alone = ["--no-deps"] if file.stem.endswith(".no-deps") else []
        commands.append([*pip, *alone, "--requirement", str(file)])
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as output:
        for command in commands:
            if subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False).returncode:
                raise ValueError(f"the environment for {name} cannot be set up: see {log}")
    (place / ".installed").write_text(_digest(name))


def _place(folder: Path, name: str) -> Path:
    return folder.absolute() / "venvs" / name


def _digest(name: str) -> str:
    pins = b"".join(file.read_bytes() for file in list_requirements(name))
    return hashlib.sha256(sys.version.encode() + pins).hexdigest()


def name_files(paths: Sequence[str]) -> str:
    stats = [(path, Path(path).stat()) for path in paths]
    description = "".join(f"{path} {stat.st_size} {stat.st_mtime_ns}\n" for path, stat in stats)
    return hashlib.sha256(description.encode()).hexdigest()[:16]


def make_sample(paths: Sequence[str], rows: int, folder: Path) -> list[str]:
    """Write the sample, unless it exists."""
    home = folder / "sample" / f"{name_files(paths)}-{rows}-rows"
    layout = Layout(rows, -(-rows // _GROUPS))

    def make(home: Path) -> None:
        home.mkdir()
        table = _read_first(paths, rows)
        for number, part in enumerate(layout.files()):
            path, own = home / f"part-{number:05d}.parquet", table.slice(part.start, len(part))
            pq.write_table(own, path, row_group_size=layout.group_rows, compression="snappy")

    make_once(home, make)
    return sorted(str(path.resolve()) for path in home.glob("*.parquet"))


def _read_first(paths: Sequence[str], rows: int) -> pa.Table:
    tables: list[pa.Table] = []
    for table in iterate_tables(paths):
        tables.append(table.slice(0, rows - sum(one.num_rows for one in tables)))
        if sum(one.num_rows for one in tables) == rows:
            break
    return pa.concat_tables(tables)
