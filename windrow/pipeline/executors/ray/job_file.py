"""The file by which other programs of the same user find the Ray cluster that a supervisor has started on a node."""

from __future__ import annotations

import json
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from windrow.core.system.files import NOFOLLOW, open_file
from windrow.core.system.processes import is_private

# of the directories that supervisors make
DIRECTORY_PREFIX = "windrow-ray-"
_NAME = "job.json"


@dataclass(frozen=True)
class JobFile:
    """What a process of this node needs to connect to a job's cluster: as in `ClusterAddress`, and the job's script."""

    address: str
    ip: str = ""
    auth_token: str = field(default="", repr=False)
    script: str = ""

    def write(self, directory: Path) -> None:
        """Write the file, which only this user can read."""
        descriptor = open_file(directory / _NAME, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(asdict(self), file)


def find_jobs(folder: Path | None = None) -> list[JobFile]:
    """The jobs of this user on this machine; also those whose supervisor was killed."""
    return list(_read_all(folder or Path(tempfile.gettempdir())))


def _read_all(folder: Path) -> Iterator[JobFile]:
    for directory in sorted(folder.glob(f"{DIRECTORY_PREFIX}*")):
        with suppress(OSError, ValueError, TypeError):
            yield JobFile(**json.loads(_read_own(directory / _NAME)))


def _read_own(path: Path) -> str:
    """Read a file of this user; raises a PermissionError if another user can have written it.

    With it, another user could have this process connect to a cluster of theirs, and run their code. Ray lets everybody
    write to the directory, but nobody can give a file to this user.
    """
    with open(open_file(path, os.O_RDONLY | NOFOLLOW), encoding="utf-8") as file:
        found = os.fstat(file.fileno())
        if not (stat.S_ISREG(found.st_mode) and is_private(found)):
            raise PermissionError(f"{path} is not a file of this user alone")
        return file.read()
