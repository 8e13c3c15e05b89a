"""`MapBatches`: a user's function with its options, as a pipeline carries it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import pyarrow as pa

from windrow.core.errors import PlanError, TransformError
from windrow.core.integers import as_integer
from windrow.core.machine import available_cores
from windrow.core.source import BlockReader
from windrow.core.user_functions import (
    ConstructorError,
    check_function,
    function_name,
    raise_function_error,
)
from windrow.pipeline.tasks.actor_pool import (
    Compute,
    FunctionWorkers,
    Pool,
    WorkerResources,
    choose_pool,
)
from windrow.pipeline.tasks.row_functions import (
    FilterExpression,
    FilterRows,
    FunctionFormat,
    SampleRows,
    check_function_format,
)
from windrow.pipeline.tasks.row_generator import RowGenerator

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class MapBatches:
    """A function to call on batches as ``fn(batch, *fn_args, **fn_kwargs)``, as `map_batches` documents it.

    ``map``, ``filter`` and the like are functions on batches too; ``call`` is how the user wrote them.
    """

    fn: Callable[..., Any]
    batch_format: FunctionFormat = "numpy"
    # rows of a batch; the last one of a block can have fewer; None: a block is one batch
    batch_size: int | None = None
    fn_args: tuple[Any, ...] = field(default=(), hash=False)
    fn_kwargs: Mapping[str, Any] = field(default_factory=dict, hash=False)
    # whether output row i comes from input row i
    preserves_rows: bool = True
    # for a class: what its instances are made with
    fn_constructor_args: tuple[Any, ...] = field(default=(), hash=False)
    fn_constructor_kwargs: Mapping[str, Any] = field(default_factory=dict, hash=False)
    # whether ``fn`` gets a `RowGenerator` as ``rng``
    rng: bool = False
    # None: nothing is chosen
    compute: Compute | Pool | None = None
    resources: WorkerResources = WorkerResources()
    # whether it moves behind the shuffle where nothing before the shuffle needs what it makes
    is_late: bool = False
    # the call in errors and plans, such as "filter(is_long)"; empty: that of map_batches
    call: str = ""
    # makes a function on batches of ``fn``, which then is one on rows, or of an instance of it; None: ``fn`` is one
    adapter: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None
    # workers elsewhere, which an executor has started for this run; None: those of this process
    workers: RemoteWorkers | None = field(default=None, compare=False, repr=False)
    # makes the function on batches: of a class, a new object
    make_instance: Callable[[], Callable[..., Any]] = field(init=False, compare=False, repr=False)
    # the workers of this process
    local_workers: FunctionWorkers = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        check_function(self.fn, "map_batches")
        check_function_format(self.batch_format)
        size = as_integer(self.batch_size)
        if self.batch_size is not None and (size is None or size < 1):
            raise PlanError(
                f"batch_size={self.batch_size!r} must be an integer of 1 or more, or None for whole blocks"
            )
        for name in ("preserves_rows", "rng"):
            if not isinstance(getattr(self, name), bool):
                raise PlanError(f"{name}={getattr(self, name)!r} must be True or False")
        for name in ("fn_args", "fn_constructor_args"):
            given = getattr(self, name)
            if isinstance(given, str) or not isinstance(given, Sequence):
                raise PlanError(f"{name}={given!r} must be a tuple of arguments")
            # copies, so that later changes of the caller's objects have no effect
            object.__setattr__(self, name, tuple(given))
        for name in ("fn_kwargs", "fn_constructor_kwargs"):
            given = getattr(self, name)
            if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
                raise PlanError(f"{name}={given!r} must be a dict of arguments by name")
            object.__setattr__(self, name, dict(given))
        if not self.is_class and (self.fn_constructor_args or self.fn_constructor_kwargs):
            raise PlanError(
                f"{self.name} is not a class: fn_constructor_args are for classes; a function gets fn_args"
            )
        object.__setattr__(self, "batch_size", size)
        pool = choose_pool(self.compute, self.resources)
        # "tasks" says that the user has chosen
        object.__setattr__(self, "compute", "tasks" if self.compute == "tasks" else pool)
        self._set_local_workers()

    def _set_local_workers(self) -> None:
        # no reference to this object, or instances would live until the next collection of cycles
        make = partial(
            _make_instance,
            self.fn,
            self.fn_constructor_args,
            self.fn_constructor_kwargs,
            self.adapter,
            self.name,
        )
        object.__setattr__(self, "make_instance", make)
        workers = FunctionWorkers(make, None if self.pool is None else self.pool.sizes(available_cores())[1])
        object.__setattr__(self, "local_workers", workers)

    @property
    def name(self) -> str:
        return self.call or f"map_batches({function_name(self.fn)})"

    @property
    def only_drops(self) -> bool:
        """Whether it keeps or drops each row by itself, as it is."""
        return self.adapter is FilterRows or isinstance(self.fn, (FilterExpression, SampleRows))

    @property
    def is_class(self) -> bool:
        """Whether ``fn`` is a class, whose instances are called."""
        return isinstance(self.fn, type)

    @property
    def pool(self) -> Pool | None:
        """The pool of workers that run it; None: the workers that read, or place rows, do."""
        return None if self.compute is None or isinstance(self.compute, str) else self.compute

    def __getstate__(self) -> dict[str, Any]:
        # instances stay in their process
        of_this_process = ("local_workers", "make_instance")
        return {name: value for name, value in self.__dict__.items() if name not in of_this_process}

    def __dask_tokenize__(self) -> Any:
        """What dask identifies it by."""
        return self.__getstate__()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._set_local_workers()


def _make_instance(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    adapter: Callable[[Callable[..., Any]], Callable[..., Any]] | None,
    name: str,
) -> Callable[..., Any]:
    """The function on batches: of a class, a new instance."""
    if isinstance(fn, type):
        try:
            fn = fn(*args, **kwargs)
        except BaseException as exc:
            raise_function_error(exc, f"{name}, while making an object of the class", kind=ConstructorError)
    return fn if adapter is None else adapter(fn)


@dataclass(frozen=True)
class StagedCall(Generic[T, R]):
    """A picklable call that reads blocks and applies transforms to them."""

    reader: BlockReader
    maps: tuple[MapBatches, ...]

    @abstractmethod
    def __call__(self, argument: T, /) -> R:
        """Return the result for an argument."""


# what a function made of a batch, and the rows that failed if they are to be left out
Result = tuple[pa.Table, list[tuple[int, TransformError]]]


@dataclass(frozen=True)
class Call:
    """One call of a transform's function."""

    # as a table, since a sliced record batch is pickled with all its rows
    rows: pa.Table
    # describes the batch in errors
    where: str
    rng: RowGenerator | None
    # whether rows for which the function fails are left out, where it treats each row by itself
    skips_failed: bool


class RemoteWorkers(Protocol):
    """The workers of a transform's pool in other processes."""

    @property
    def most(self) -> int:
        """How many there are at most."""

    @property
    def calls_together(self) -> int:
        """How many calls to start at a time: more than one, where each is short beside the way to a worker."""

    def start(self, calls: Sequence[Call]) -> Sequence[Callable[[], Result]]:
        """Start calls; returns for each what waits for its result, or raises its error.

        These have to be called in turn. After one has raised, the others answer only where calls skip failed rows.
        """
