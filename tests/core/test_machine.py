"""What this process may use: cores and memory, and limits where systemd, SLURM, Kubernetes and Docker set them."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from windrow.core import machine
from windrow.core.machine import available_cores, find_groups, free_memory_bytes
from windrow.core.system.processes import use_batch_scheduling


def test_the_machine_has_cores_and_memory() -> None:
    assert 1 <= machine.available_cores() <= (os.cpu_count() or 1)
    assert machine.free_memory_bytes() > 2**20


LINUX = pytest.mark.skipif(sys.platform != "linux", reason="how threads wake up can be told on Linux only")


def policy_after(*calls: Callable[[], object]) -> int:
    """How a thread of its own is scheduled after it has made some calls."""
    told: list[int] = []

    def run() -> None:
        for call in calls:
            call()
        told.append(os.sched_getscheduler(0))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(10)
    return told[0]


@LINUX
def test_a_thread_that_wakes_behind_others_is_the_only_one_that_does() -> None:
    before = os.sched_getscheduler(0)
    assert policy_after(use_batch_scheduling) == os.SCHED_BATCH
    assert os.sched_getscheduler(0) == before
    assert policy_after() == before


@LINUX
def test_a_thread_that_is_scheduled_in_another_way_stays_so() -> None:
    def idle() -> None:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))

    assert policy_after(idle, use_batch_scheduling) == os.SCHED_IDLE


@LINUX
def test_refusal_by_the_kernel_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError("not here")

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    assert policy_after(use_batch_scheduling) == os.sched_getscheduler(0)


AVAILABLE = 64 * 2**20
MIB = 2**20
V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"


def make_root(root: Path, cgroup: str, mountinfo: str, files: Mapping[str, Mapping[str, int | str]]) -> Path:
    """Write what /proc and /sys/fs/cgroup would have under a folder."""
    process = root / "proc/self"
    process.mkdir(parents=True)
    (process / "cgroup").write_text(cgroup)
    (process / "mountinfo").write_text("22 1 0:20 / / rw - ext4 /dev/sda1 rw\n" + mountinfo)
    (root / "proc/meminfo").write_text(f"MemTotal: 99999999 kB\nMemAvailable: {AVAILABLE // 1024} kB\n")
    for folder, values in files.items():
        path = root / "sys/fs/cgroup" / folder
        path.mkdir(parents=True, exist_ok=True)
        for name, value in values.items():
            (path / name).write_text(f"{value}\n")
    return root


def v2(limit: int | str, used: int = 0, high: int | str = "max", stat: str = "") -> dict[str, int | str]:
    return {"memory.max": limit, "memory.high": high, "memory.current": used, "memory.stat": stat}


def v1(limit: int, used: int = 0, stat: str = "") -> dict[str, int | str]:
    return {"memory.limit_in_bytes": limit, "memory.usage_in_bytes": used, "memory.stat": stat}


UNLIMITED_V1 = 9223372036854771712
V1 = (
    "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "36 31 0:33 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
)
SLICE = "user.slice/user-7.slice/train.scope"
POD = "kubepods.slice/kubepods-burstable.slice/pod7.slice/cri-9.scope"
STEP = "slurm/uid_7/job_8/step_0/task_0"

MACHINES: dict[str, tuple[str, str, dict[str, dict[str, int | str]], int]] = {
    "no groups": ("", "", {}, AVAILABLE),
    "no limit": (f"0::/{SLICE}\n", V2, {SLICE: v2("max", 5 * MIB)}, AVAILABLE),
    "a limit above the machine's": ("0::/\n", V2, {".": v2(999 * MIB)}, AVAILABLE),
    "the root's, as a container sees its own": ("0::/\n", V2, {".": v2(10 * MIB, 4 * MIB)}, 6 * MIB),
    "a systemd scope": (f"0::/{SLICE}\n", V2, {SLICE: v2(10 * MIB, 4 * MIB)}, 6 * MIB),
    "a systemd slice": (
        f"0::/{SLICE}\n",
        V2,
        {"user.slice/user-7.slice": v2(10 * MIB, 4 * MIB), SLICE: v2("max", MIB)},
        6 * MIB,
    ),
    "the tightest level": (
        f"0::/{POD}\n",
        V2,
        {
            POD: v2(20 * MIB, 2 * MIB),
            str(Path(POD).parent): v2(20 * MIB, 12 * MIB),
            "kubepods.slice": v2(40 * MIB, 20 * MIB),
        },
        8 * MIB,
    ),
    "where the kernel throttles": (f"0::/{SLICE}\n", V2, {SLICE: v2(20 * MIB, 4 * MIB, 9 * MIB)}, 5 * MIB),
    "idle pages of files": (
        f"0::/{SLICE}\n",
        V2,
        {SLICE: v2(10 * MIB, 4 * MIB, stat=f"anon 1\nactive_file {MIB}\ninactive_file {3 * MIB}")},
        9 * MIB,
    ),
    "more idle pages than are used": (
        f"0::/{SLICE}\n",
        V2,
        {SLICE: v2(10 * MIB, 4 * MIB, stat=f"inactive_file {30 * MIB}")},
        10 * MIB,
    ),
    "more used than allowed": (f"0::/{SLICE}\n", V2, {SLICE: v2(10 * MIB, 14 * MIB)}, 0),
    "a container that sees the machine's path": (
        f"0::/{POD}\n",
        V2.replace("0:26 /", f"0:26 /{POD}"),
        {".": v2(10 * MIB, 4 * MIB)},
        6 * MIB,
    ),
    "a group outside of the container": ("0::/../../other\n", V2, {".": v2(10 * MIB, 4 * MIB)}, 6 * MIB),
    "another mount's group": (
        "0::/elsewhere\n",
        V2.replace("0:26 /", "0:26 /here"),
        {".": v2(10 * MIB, 4 * MIB), "elsewhere": v2(MIB)},
        6 * MIB,
    ),
    "a mount point with a space": (
        "0::/a\n",
        V2.replace("/sys/fs/cgroup", "/sys/fs/cgroup/my\\040groups"),
        {"my groups/a": v2(10 * MIB, 4 * MIB)},
        6 * MIB,
    ),
    "version 1, SLURM": (
        f"5:cpu,cpuacct:/\n4:memory:/{STEP}\n0::/\n",
        V1,
        {
            "memory": v1(UNLIMITED_V1, 50 * MIB),
            "memory/slurm/uid_7/job_8": v1(12 * MIB, 4 * MIB, f"inactive_file 1\ntotal_inactive_file {MIB}"),
            f"memory/{STEP}": v1(UNLIMITED_V1, MIB),
        },
        9 * MIB,
    ),
    "version 1, Docker": (
        "4:memory:/docker/7\n",
        V1.replace("0:32 /", "0:32 /docker/7"),
        {"memory": v1(10 * MIB, 4 * MIB)},
        6 * MIB,
    ),
    "both versions": (
        f"4:memory:/a\n0::/{SLICE}\n",
        V1 + V2.replace("/sys/fs/cgroup", "/sys/fs/cgroup/unified"),
        {"memory/a": v1(10 * MIB, 4 * MIB), f"unified/{SLICE}": {"cpu.max": "max 100000"}},
        6 * MIB,
    ),
    "a bind mount of the host's hierarchy before the container's own": (
        "0::/\n",
        V2.replace("/ /sys/fs/cgroup", "/../../.. /sys/fs/cgroup/host") + V2,
        {".": v2(10 * MIB, 4 * MIB), "host": {"memory.stat": ""}},
        6 * MIB,
    ),
    "a bind mount of the host's hierarchy alone": (
        "0::/\n",
        V2.replace("/ /sys/fs/cgroup", "/../../.. /sys/fs/cgroup/host"),
        {"host": v2(10 * MIB, 4 * MIB)},
        6 * MIB,
    ),
    "a group outside of the container, and a mount that shows it": (
        "0::/../../other\n",
        V2 + V2.replace("/ /sys/fs/cgroup", "/../.. /sys/fs/cgroup/host"),
        {".": v2(MIB), "host/other": v2(10 * MIB, 4 * MIB)},
        6 * MIB,
    ),
    "a bind mount of another group first": (
        "0::/kubepods/me\n",
        V2.replace("/ /sys/fs/cgroup", "/kubepods/m /sys/fs/cgroup/bound") + V2,
        {"kubepods/me": v2(10 * MIB, 4 * MIB), "bound": v2(MIB)},
        6 * MIB,
    ),
    "a bind mount of its own group, below the one that has the limit": (
        "0::/kubepods/me\n",
        V2.replace("/ /sys/fs/cgroup", "/kubepods/me /sys/fs/cgroup/bound") + V2,
        {"kubepods": v2(10 * MIB, 4 * MIB), "kubepods/me": v2("max"), "bound": v2("max")},
        6 * MIB,
    ),
    "a mount over another one": (
        "0::/a\n",
        V2 + V2.replace("0:26 /", "0:26 /a"),
        {".": v2(10 * MIB, 4 * MIB), "a": v2(MIB)},
        6 * MIB,
    ),
    "version 1, a limit above what the mount shows": (
        "4:memory:/kubepods/pod1/c1\n",
        V1.replace("0:32 /", "0:32 /kubepods/pod1/c1"),
        {"memory": v1(UNLIMITED_V1, 4 * MIB, f"cache 1\nhierarchical_memory_limit {10 * MIB}")},
        6 * MIB,
    ),
    "version 1, a limit below the one above": (
        "4:memory:/\n",
        V1,
        {"memory": v1(10 * MIB, 4 * MIB, f"hierarchical_memory_limit {20 * MIB}")},
        6 * MIB,
    ),
    "nothing to read": (f"0::/{SLICE}\n", V2, {SLICE: {"memory.max": "x", "memory.current": ""}}, AVAILABLE),
}


@pytest.mark.parametrize("machine", MACHINES)
def test_memory_is_bounded_at_every_level(tmp_path: Path, machine: str) -> None:
    cgroup, mountinfo, files, free = MACHINES[machine]
    assert free_memory_bytes(make_root(tmp_path, cgroup, mountinfo, files)) == free


def test_groups_are_found_innermost_first(tmp_path: Path) -> None:
    root = make_root(tmp_path, "0::/a/b\n3:cpuset:/c\n", V1 + V2, {})
    mounted = root / "sys/fs/cgroup"
    assert [group.path for group in find_groups("memory", root)] == [
        mounted / "a/b",
        mounted / "a",
        mounted,
    ]
    assert [(group.path.name, group.version) for group in find_groups("cpuset", root)][3:] == [
        ("c", 1),
        ("cpuset", 1),
    ]


CPUS: dict[str, tuple[str, str, dict[str, dict[str, int | str]], int]] = {
    "a quota": ("0::/a\n", V2, {"a": {"cpu.max": "200000 100000"}}, 2),
    "no quota": ("0::/a\n", V2, {"a": {"cpu.max": "max 100000"}}, 8),
    "a quota above": (
        "0::/a/b\n",
        V2,
        {"a": {"cpu.max": "300000 100000"}, "a/b": {"cpu.max": "max 100000"}},
        3,
    ),
    "less than a core": ("0::/a\n", V2, {"a": {"cpu.max": "10000 100000"}}, 1),
    "version 1": (
        "5:cpu,cpuacct:/job/step\n",
        V1,
        {
            "cpu,cpuacct/job": {"cpu.cfs_quota_us": 400000, "cpu.cfs_period_us": 100000},
            "cpu,cpuacct/job/step": {"cpu.cfs_quota_us": -1, "cpu.cfs_period_us": 100000},
        },
        4,
    ),
}


@pytest.fixture
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(os, "cpu_count", lambda: 8)


@pytest.mark.usefixtures("eight_cores")
@pytest.mark.parametrize("machine", CPUS)
def test_cores_are_bounded_at_every_level(tmp_path: Path, machine: str) -> None:
    cgroup, mountinfo, files, cores = CPUS[machine]
    assert available_cores(root=make_root(tmp_path, cgroup, mountinfo, files)) == cores


@pytest.mark.usefixtures("eight_cores")
@pytest.mark.parametrize(("processes", "cores"), [(1, 8), (2, 4), (3, 2), (8, 1), (9, 1)])
def test_processes_divide_the_cores(tmp_path: Path, processes: int, cores: int) -> None:
    root = make_root(tmp_path, "0::/a\n", V2, {"a": {"cpuset.cpus.effective": "0-3,8-11"}})
    assert available_cores(processes, root) == cores


@pytest.mark.usefixtures("eight_cores")
def test_processes_divide_a_quota(tmp_path: Path) -> None:
    root = make_root(tmp_path, "0::/a\n", V2, {"a": {"cpu.max": "600000 100000"}})
    assert [available_cores(processes, root) for processes in (1, 2, 3)] == [6, 3, 2]


@pytest.mark.usefixtures("eight_cores")
@pytest.mark.parametrize(
    ("cgroup", "mountinfo", "files"),
    [
        ("0::/a\n", V2, {"a": {"cpuset.cpus.effective": "0-31"}}),
        ("6:cpuset:/a\n", V1, {"cpuset/a": {"cpuset.effective_cpus": "0-15,16"}}),
    ],
)
def test_a_process_that_is_bound_to_its_own_cores_has_them(
    tmp_path: Path, cgroup: str, mountinfo: str, files: dict[str, dict[str, int | str]]
) -> None:
    assert available_cores(4, make_root(tmp_path, cgroup, mountinfo, files)) == 8
