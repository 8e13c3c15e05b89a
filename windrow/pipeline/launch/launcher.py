"""Finds rank, world size, node and local process count from torch.distributed or the launcher's variables."""

from __future__ import annotations

import os
import re
import socket
import sys

from windrow.core.errors import PlanError
from windrow.core.integers import as_integer
from windrow.pipeline.plan.job import Launch

_LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE")
# srun sets these for the SLURM step of this process. SLURM_NTASKS_PER_NODE, SLURM_PROCID and SLURM_LOCALID cannot
# be used: sbatch sets them for the batch script too, whose commands without srun run alone on their node.
_STEP_SIZES = "SLURM_STEP_TASKS_PER_NODE"
_STEP_NODE = "SLURM_NODEID"
# rank and world size: torchrun, Lightning, Accelerate and Ray Train set the first two; Open MPI and srun the others
_RANKS = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)
_NODES = ("GROUP_RANK", "SLURM_NODEID")
_ATTEMPT = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "WORLD_SIZE")
_STEP_COUNT = re.compile(r"([1-9][0-9]*)(?:\(x([1-9][0-9]{0,6})\))?")
_FIX = "call shard(rank=..., world_size=...), start the process with torchrun, or set RANK and WORLD_SIZE"


def find_rank(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Return (rank, world size): as given, from torch.distributed, or from the launcher's variables."""
    if (rank is None) != (world_size is None):
        raise PlanError(f"shard(rank={rank!r}, world_size={world_size!r}): give both, or neither")
    if rank is None or world_size is None:
        rank, world_size = _torch_rank() or _environment_rank()
    size, number = as_integer(world_size), as_integer(rank)
    if size is None or size < 1:
        raise PlanError(f"world_size={world_size!r} must be an integer of 1 or more")
    if number is None or not 0 <= number < size:
        raise PlanError(f"rank={rank!r} must be an integer from 0 to world_size - 1 = {size - 1}")
    return number, size


def find_launch(world_size: int) -> Launch:
    """Return how many processes share this machine, if a launcher set it.

    torchrun and Ray Train set LOCAL_WORLD_SIZE; Open MPI and SLURM's srun set variables of their own.
    """
    # Like RANK, these variables are arguments that the launcher passes, not settings.
    for name in _LOCAL_SIZES:
        text = os.environ.get(name)
        if text is not None:
            if not text.isdecimal() or int(text) < 1:
                raise PlanError(
                    f"{name}={text!r} is not a number of processes: set it to the number of processes on this "
                    "machine, or unset it"
                )
            return Launch(int(text), max(int(text), world_size))
    text = os.environ.get(_STEP_SIZES)
    if text is not None:
        tasks = _step_tasks(text, os.environ.get(_STEP_NODE, ""))
        return Launch(tasks, max(tasks, world_size))
    return Launch()


def _step_tasks(text: str, node: str) -> int:
    """Return a SLURM step's tasks on a node, from counts such as ``2(x3),1``; the maximum if the node is unknown."""
    counts: list[int] = []
    for part in text.split(","):
        match = _STEP_COUNT.fullmatch(part)
        if match is None:
            raise PlanError(
                f"{_STEP_SIZES}={text!r} is not a list of task counts such as 2(x3),1: unset it, or set "
                "LOCAL_WORLD_SIZE to the number of processes on this machine"
            )
        counts += [int(match[1])] * int(match[2] or 1)
    return counts[int(node)] if node.isdecimal() and int(node) < len(counts) else max(counts)


def _torch_rank() -> tuple[int, int] | None:
    torch = sys.modules.get("torch")  # torch.distributed can only be initialised once torch is imported
    distributed = getattr(torch, "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return int(distributed.get_rank()), int(distributed.get_world_size())


def _environment_rank() -> tuple[int, int]:
    # Launchers pass the rank in these variables: arguments, not settings.
    for names in _RANKS[1:]:
        if not any(name in os.environ for name in _RANKS[0]) and all(name in os.environ for name in names):
            break
    else:
        names = _RANKS[0]
    texts = [os.environ.get(name) for name in names]
    missing = [name for name, text in zip(names, texts, strict=True) if text is None]
    if missing:
        raise PlanError(
            "shard() cannot find the rank of this process: torch.distributed is not initialised and "
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set. To fix it, {_FIX}"
        )
    try:
        rank, world_size = (int(text or "") for text in texts)
    except ValueError:
        shown = ", ".join(f"{name}={text!r}" for name, text in zip(names, texts, strict=True))
        raise PlanError(f"shard(): {shown} are not integers. To fix it, {_FIX}") from None
    return rank, world_size


def find_attempt() -> str:
    """A name of this start of the ranks, as far as the launcher tells one start from another."""
    return "/".join(os.environ.get(name, "") for name in _ATTEMPT)


def find_node() -> str:
    """A name of this process's node, the same for all processes of the node and different on others."""
    for name in _NODES:
        text = os.environ.get(name)
        if text:
            return text
    return socket.gethostname()


def find_single_node(world_size: int) -> bool:
    """Whether the launcher says that all ranks are on this node."""
    return any(os.environ.get(name) == str(world_size) for name in _LOCAL_SIZES)


def has_launcher() -> bool:
    """Whether a launcher has told this process its rank."""
    return any(name in os.environ for names in _RANKS[:2] for name in names)
