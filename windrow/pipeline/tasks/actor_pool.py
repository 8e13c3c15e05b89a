"""`ActorPool`: how many workers run a transform, what each of them needs, and the instances in this process."""

from __future__ import annotations

import math
import numbers
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from windrow.core.byte_sizes import parse_bytes
from windrow.core.errors import PlanError
from windrow.core.integers import as_integer

_NAMED = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}


@dataclass(frozen=True, repr=False)
class ActorPool:
    """Worker processes of a transform's own, for functions that are costly to set up, need a GPU or hold the GIL.

    On Ray these are actors, on any node, beside the tasks that read. On threads they are processes on this machine,
    which share memory with this one. A pool starts with ``min_size`` workers. While all of them are busy, it grows up
    to ``max_size``; workers that have had no work for half a minute end. A worker that dies is replaced, and its
    batches are made again. ``compute="processes"`` stands for a pool of at most as many workers as there are cores.

    Parameters
    ----------
    size
        Number of workers; it stands for both other parameters.
    min_size, max_size
        The least and the largest number of workers.

    Raises
    ------
    PlanError
        If the sizes are not integers of 1 or more, ``max_size`` is below ``min_size``, or ``size`` is given with
        one of the others.

    Examples
    --------
    >>> import windrow
    >>> class Model:
    ...     def __init__(self, factor):
    ...         self.factor = factor  # a real one loads its weights here, once for each worker
    ...     def __call__(self, batch):
    ...         return {"score": batch["id"] * self.factor}
    >>> scored = windrow.range(3).map_batches(
    ...     Model, fn_constructor_args=(2,), compute=windrow.ActorPool(min_size=1, max_size=4)
    ... )
    >>> scored.take_batch()
    {'score': array([0, 2, 4])}
    """

    size: int | None = None
    min_size: int | None = None
    max_size: int | None = None

    def __post_init__(self) -> None:
        if self.size is not None and (self.min_size is not None or self.max_size is not None):
            raise PlanError(
                f"ActorPool(size={self.size!r}) with min_size or max_size: give size, or the other two"
            )
        least = _check_size("min_size", 1 if self.min_size is None else self.min_size)
        if self.size is not None:
            least = largest = _check_size("size", self.size)
        else:
            largest = _check_size("max_size", least if self.max_size is None else self.max_size)
        if largest < least:
            raise PlanError(f"ActorPool: max_size={largest} is below min_size={least}")
        object.__setattr__(self, "min_size", least)
        object.__setattr__(self, "max_size", largest)
        object.__setattr__(self, "size", largest if largest == least else None)

    def sizes(self, cores: int) -> tuple[int, int]:
        """The least and the largest number of workers, whatever the number of cores."""
        return self.min_size or 1, self.max_size or 1

    def __repr__(self) -> str:
        least, largest = self.sizes(1)
        given = f"size={least}" if least == largest else f"min_size={least}, max_size={largest}"
        return f"ActorPool({given})"

    def __str__(self) -> str:
        least, largest = self.sizes(1)
        count = str(least) if least == largest else f"{least} to {largest}"
        return f"{count} process{'' if largest == 1 else 'es'}"


@dataclass(frozen=True)
class CorePool:
    """The pool that ``compute="processes"`` stands for, which grows with the cores."""

    def sizes(self, cores: int) -> tuple[int, int]:
        """The least and the largest number of workers on so many cores."""
        return 1, max(1, cores)

    def __str__(self) -> str:
        return "up to one process a core"


Pool = ActorPool | CorePool
Compute = Literal["tasks", "actors", "processes"] | ActorPool


def _check_size(name: str, value: object) -> int:
    size = as_integer(value)
    if size is None or size < 1:
        raise PlanError(f"ActorPool({name}={value!r}) must be an integer of 1 or more")
    return size


@dataclass(frozen=True)
class WorkerResources:
    """What Ray reserves for each worker of a pool."""

    num_cpus: float | None = None
    num_gpus: float | None = None
    memory: int | str | None = None
    resources: Mapping[str, float] | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        for name, value in (("num_cpus", self.num_cpus), ("num_gpus", self.num_gpus)):
            _check_amount(name, value)
        if self.num_gpus is not None and self.num_gpus > 1 and self.num_gpus != int(self.num_gpus):
            raise PlanError(f"num_gpus={self.num_gpus!r}: above 1 it must be a whole number")
        if self.memory is not None:
            object.__setattr__(self, "memory", parse_bytes(self.memory, "memory"))
        if self.resources is not None:
            if not isinstance(self.resources, Mapping) or not all(isinstance(k, str) for k in self.resources):
                raise PlanError(f"resources={self.resources!r} must be a dict of amounts by name")
            for name, value in self.resources.items():
                _check_amount(f"resources[{name!r}]", value)
                if name in _NAMED:
                    raise PlanError(f"resources={{{name!r}: ...}}: give {_NAMED[name]}= instead")
            object.__setattr__(self, "resources", dict(self.resources))

    def __bool__(self) -> bool:
        return bool(self.num_cpus or self.num_gpus or self.memory or self.resources)

    @property
    def options(self) -> dict[str, Any]:
        """Arguments for Ray; without a GPU or another amount, a worker takes one CPU."""
        cpus = self.num_cpus
        if cpus is None:
            cpus = 0.0 if self.num_gpus or self.resources else 1.0
        found: dict[str, Any] = {"num_cpus": cpus}
        if self.num_gpus is not None:
            found["num_gpus"] = self.num_gpus
        if self.memory is not None:
            found["memory"] = self.memory
        if self.resources:
            found["resources"] = dict(self.resources)
        return found

    def __str__(self) -> str:
        given = {name: value for name, value in vars(self).items() if value is not None}
        return ", ".join(f"{name}={value!r}" for name, value in given.items())


def _check_amount(name: str, value: object) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 <= float(value) < math.inf:
        raise PlanError(f"{name}={value!r} must be a number of 0 or more, or None")


def choose_pool(compute: Compute | Pool | None, resources: WorkerResources) -> Pool | None:
    """Return the pool that a transform runs in; None: the workers that read, or place rows, run it."""
    if isinstance(compute, (ActorPool, CorePool)):
        return compute
    if compute == "processes":
        return CorePool()
    if compute is None and resources == WorkerResources(num_cpus=resources.num_cpus) and resources:
        raise PlanError(
            f"{resources} reserves CPUs for actors: pass compute=windrow.ActorPool(...) too, or leave it out for the "
            "workers that read, which reserve one CPU each"
        )
    if compute == "actors" or (compute is None and resources):
        return ActorPool(size=1)
    if compute not in (None, "tasks"):
        raise PlanError(f"compute={compute!r} must be 'tasks', 'actors', 'processes' or a windrow.ActorPool")
    if resources:
        raise PlanError(
            f"compute='tasks' runs on the workers that read, which reserve one CPU each: leave out {resources}, or "
            "pass compute=windrow.ActorPool(...)"
        )
    return None


class FunctionWorkers:
    """The instances of a transform's class in this process; a plain function is its own instance.

    Without a pool, each thread has an instance, which it makes when it first needs one and which ends with it.
    With a pool of ``size``, there are at most so many, each used by one thread at a time, and a thread waits
    for one that is free.
    """

    def __init__(self, make: Callable[[], Callable[..., Any]], size: int | None) -> None:
        self._make = make
        self._of_thread = threading.local()
        self._slots = None if size is None else threading.Semaphore(size)
        self._idle: list[Callable[..., Any]] = []

    @contextmanager
    def instance(self) -> Iterator[Callable[..., Any]]:
        """An instance that no other thread uses meanwhile."""
        if self._slots is None:
            found = getattr(self._of_thread, "instance", None)
            if found is None:
                found = self._of_thread.instance = self._make()
            yield found
            return
        with self._slots:
            try:
                found = self._idle.pop()
            except IndexError:
                found = self._make()
            try:
                yield found
            finally:
                self._idle.append(found)
