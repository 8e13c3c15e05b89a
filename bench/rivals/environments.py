"""Virtual environments of the rivals, with the versions that they need.

``bench/peers/requirements/<name>.txt`` pins all of them. Packages in
``<name>.no-deps.txt`` are installed without their dependencies, because these are out
of date or include much that is not needed here.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from importlib import metadata
from pathlib import Path

__all__ = ["find_python", "find_version", "is_ready", "list_requirements", "make_environment"]

_REQUIREMENTS = Path(__file__).resolve().parent.parent / "peers" / "requirements"


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
    """The Python interpreter of an environment.

    Raises
    ------
    ValueError
        If it was not set up, or with other versions.
    """
    if not is_ready(folder, name):
        raise ValueError(
            f"there is no environment for {name} in {folder}/venvs yet: run make peers to set it up"
        )
    return _place(folder, name) / "bin" / "python"


def is_ready(folder: Path, name: str) -> bool:
    """Whether an environment exists with the current requirements."""
    stamp = _place(folder, name) / ".installed"
    return stamp.exists() and stamp.read_text() == _digest(name)


def make_environment(folder: Path, name: str, log: Path) -> None:
    """Create an environment from scratch; the output of pip goes to the log.

    Raises
    ------
    ValueError
        If the installation fails.
    """
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
    """A hash of the pinned versions and of the Python version."""
    pins = b"".join(file.read_bytes() for file in list_requirements(name))
    return hashlib.sha256(sys.version.encode() + pins).hexdigest()
