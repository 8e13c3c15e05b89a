"""`Resources`: what an executor offers to a run, as far as a plan depends on it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Resources"]


@dataclass(frozen=True)
class Resources:
    """The resources that an executor offers."""

    # its name, and why it was chosen
    executor: str
    # number of tasks that run concurrently
    workers: int
    # the memory limit if the user sets none, and whether runs, decoded blocks and processes count against it too
    memory_bytes: int
    limit_covers_all: bool
    # copies of each window in memory: rows that move between nodes are stored on both
    copies: float = 1.0
    # one line each
    user_warnings: tuple[str, ...] = ()
    # memory of processes other than data: of all workers, and of each shard's process
    processes_bytes: int = 0
    shard_bytes: int = 0
    # number of machines that can read shards
    nodes: int = 1
    # the part of processes_bytes that one worker adds
    worker_bytes: int = 0
    # the CPUs that a task requests
    task_cpus: float = 1.0
    # If all buffered windows, a few extra ones included, take no more than this together, the coordinator
    # holds the extra ones, so that shards can batch their acknowledgements.
    small_windows_bytes: int = 0
    # number of processes that share the machine or cluster; the values above are one's share
    processes: int = 1
