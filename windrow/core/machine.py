"""Cores and memory that this process can use, as affinity and control groups limit them.

Control groups (v1 and v2) are read at every level, since any ancestor can carry a limit: systemd sets it on a slice,
SLURM on a job or a step, Kubernetes on a pod and on each container. ``/proc/self/cgroup`` and ``/proc/self/mountinfo``
give the paths of the files. Systems without these files have no such limits.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from windrow.core.system.memory import memory_bytes
from windrow.core.system.processes import usable_cores

_ROOT = Path("/")


@dataclass(frozen=True)
class _ControlGroup:
    """The directory of one control group; ``version`` (1 or 2) tells which files it holds."""

    path: Path
    version: int


@dataclass(frozen=True)
class _Mount:
    """A mounted cgroup hierarchy."""

    version: int
    root: str  # the group that the mount point shows; in a container usually the container's own
    point: str
    controllers: frozenset[str]  # of version 1; for version 2 the mount does not list them

    def controls(self, controller: str, version: int) -> bool:
        return self.version == version and (version == 2 or controller in self.controllers)


def find_groups(controller: str, root: Path = _ROOT) -> list[_ControlGroup]:
    """Find this process's control groups for ``"memory"``, ``"cpu"`` or ``"cpuset"``, innermost first.

    ``root`` is that of ``/proc`` and the mounted hierarchies; tests pass another one.
    """
    mountinfo, groups = _read_file(root / "proc/self/mountinfo"), _read_file(root / "proc/self/cgroup")
    return list(_find_groups(controller, root, mountinfo, groups))


@lru_cache(maxsize=16)
def _find_groups(controller: str, root: Path, mountinfo: str, groups: str) -> tuple[_ControlGroup, ...]:
    """As `find_groups`, given the texts of both files, which hardly ever change."""
    mounts = _find_mounts(mountinfo)
    found: list[_ControlGroup] = []
    for line in groups.splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        unified = number == "0" and not names
        if unified or controller in names.split(","):
            version = 2 if unified else 1
            mount = _choose_mount([each for each in mounts if each.controls(controller, version)], path)
            if mount is not None:
                point = root / mount.point.lstrip("/")
                found += [_ControlGroup(point / level, version) for level in _levels(path, mount.root)]
    return tuple(found)


def _find_mounts(mountinfo: str) -> list[_Mount]:
    """Parse the cgroup mounts from the text of ``/proc/self/mountinfo``."""
    found = []
    for line in mountinfo.splitlines():
        fields, _, rest = line.partition(" - ")
        place, system = fields.split(), rest.split()
        if len(place) >= 5 and len(system) >= 3 and system[0] in ("cgroup", "cgroup2"):
            version, controllers = (2 if system[0] == "cgroup2" else 1), frozenset(system[2].split(","))
            found.append(_Mount(version, _decode(place[3]), _decode(place[4]), controllers))
    return found


def _choose_mount(mounts: Sequence[_Mount], path: str) -> _Mount | None:
    """The mount that shows a group and most of its ancestors; if none shows it, the most likely one."""
    # a later mount hides earlier ones at the same point
    visible = list({mount.point: mount for mount in mounts}.values())
    showing = [mount for mount in visible if _relative_names(path, mount.root) is not None]
    if showing:
        return min(showing, key=lambda mount: len(mount.root.rstrip("/")))
    # A root outside this process's cgroup namespace starts with "/..". Its group is an ancestor at best, for
    # example when the host's hierarchy is bind-mounted into a container.
    return min(visible, key=lambda mount: mount.root.startswith("/.."), default=None)


def _relative_names(path: str, root: str) -> list[str] | None:
    """Path components from a mount's root to a group, or None if the mount does not show the group."""
    root = root.rstrip("/")
    if not (path + "/").startswith(root + "/"):
        return None
    names = [name for name in path[len(root) :].split("/") if name]
    return None if ".." in names else names


def _levels(path: str, root: str) -> Iterator[str]:
    """Directories of a group and its ancestors relative to the mount point, innermost first."""
    # a container may see only its own group; then the mount point stands for it
    names = _relative_names(path, root) or []
    for depth in range(len(names), -1, -1):
        yield "/".join(names[:depth])


def _decode(text: str) -> str:
    """Decode a path of mountinfo, which escapes whitespace and backslashes in octal."""
    for code in ("040", "011", "012", "134"):
        text = text.replace("\\" + code, chr(int(code, 8)))
    return text


def _free_bytes(group: _ControlGroup) -> int | None:
    """Bytes that a group can still use, or None if it has no limit."""
    if group.version == 2:
        # above memory.high the kernel throttles processes and reclaims their memory
        limits = (_number(group, "memory.max"), _number(group, "memory.high"))
        used, idle_name = _number(group, "memory.current"), "inactive_file"
    else:
        # the lowest limit of the group and its ancestors, even of those that no mount shows
        inherited = _stat(group, "hierarchical_memory_limit")
        limits = (_number(group, "memory.limit_in_bytes"), inherited)
        used, idle_name = _number(group, "memory.usage_in_bytes"), "total_inactive_file"
    known = [limit for limit in limits if limit is not None]
    if not known or used is None:
        return None
    # the inactive page cache counts as used, but the kernel reclaims it on demand
    idle = _stat(group, idle_name) or 0
    return max(0, min(known) - max(0, used - idle))


def _quota_cores(group: _ControlGroup) -> int | None:
    """CPU quota of a group in cores, at least 1; None if it has none."""
    if group.version == 2:
        words = _read_file(group.path / "cpu.max").split()
        quota, period = (words[0], words[1]) if len(words) == 2 else ("", "")
    else:
        quota = _read_file(group.path / "cpu.cfs_quota_us").strip()
        period = _read_file(group.path / "cpu.cfs_period_us").strip()
    if quota.isdigit() and period.isdigit() and int(period):
        return max(1, round(int(quota) / int(period)))
    return None


def _cpuset_cores(group: _ControlGroup) -> int | None:
    """Number of cores in a group's cpuset, or None if unknown."""
    name = "cpuset.cpus.effective" if group.version == 2 else "cpuset.effective_cpus"
    text = _read_file(group.path / name).strip()
    count = 0
    for part in text.split(",") if text else ():
        first, _, last = part.partition("-")
        if not first.isdigit() or not (last or first).isdigit():
            return None
        count += int(last or first) - int(first) + 1
    return count or None


def _number(group: _ControlGroup, name: str) -> int | None:
    text = _read_file(group.path / name).strip()
    return int(text) if text.isdigit() else None


def _stat(group: _ControlGroup, key: str) -> int | None:
    for line in _read_file(group.path / "memory.stat").splitlines():
        name, _, count = line.partition(" ")
        if name == key and count.strip().isdigit():
            return int(count)
    return None


def _read_file(path: Path) -> str:
    """Text of a small system file; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


def available_cores(processes: int = 1, root: Path = _ROOT) -> int:
    """Cores that CPU affinity and control groups leave to each of ``processes`` on this machine; at least 1.

    If the launcher has pinned this process to a subset of the cores, that subset is not divided; a CPU quota
    always is. ``root`` is that of ``/proc`` and the control groups; tests pass another one.
    """
    cores = usable_cores()
    all_cores = next(_known(_cpuset_cores(group) for group in find_groups("cpuset", root)), None)
    bound = cores < (all_cores or os.cpu_count() or 1)
    shared = cores if bound else cores // processes
    quotas = _known(_quota_cores(group) for group in find_groups("cpu", root))
    return max(1, min([shared, *(quota // processes for quota in quotas)]))


def free_memory_bytes(root: Path = _ROOT) -> int:
    """Memory available without swapping, limited by control groups at every level."""
    groups = _known(_free_bytes(group) for group in find_groups("memory", root))
    return min([_available_bytes(root), *groups])


def _known(values: Iterable[int | None]) -> Iterator[int]:
    return (value for value in values if value is not None)


def _available_bytes(root: Path) -> int:
    for line in _read_file(root / "proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) * 1024
    return memory_bytes()[1]
