"""The file by which other programs of the same user find the Ray cluster that a supervisor has started on a node."""

from __future__ import annotations

import json
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

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
        descriptor = os.open(directory / _NAME, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(asdict(self), file)


def find_jobs(folder: Path | None = None) -> list[JobFile]:
    """The jobs of this user on this machine; also those whose supervisor was killed."""
    return list(_read_all(folder or Path(tempfile.gettempdir())))


def _read_all(folder: Path) -> Iterator[JobFile]:
    for directory in sorted(folder.glob(f"{DIRECTORY_PREFIX}*")):
        with suppress(OSError, ValueError, TypeError):
            # another user could have put it there, to have this process run the code of another cluster
            if _is_own(directory, stat.S_ISDIR) and _is_own(directory / _NAME, stat.S_ISREG):
                yield JobFile(**json.loads((directory / _NAME).read_text(encoding="utf-8")))


def _is_own(path: Path, is_kind: Callable[[int], bool]) -> bool:
    found = path.lstat()
    return found.st_uid == os.getuid() and is_kind(found.st_mode) and not found.st_mode & 0o022
