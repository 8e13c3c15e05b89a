"""Sends code, values and programs to Ray's workers, and finds what cannot be pickled when sending fails.

Ray 2.60 keeps an argument of more than 100 kB in its object store, deletes it once the actor has started, and cannot
restart the actor any more (ray-project/ray#53727). A program has some 80 bytes for each file, so a thousand files
suffice. Smaller arguments are kept with the actor, so programs are sent as pieces.
"""

from __future__ import annotations

import functools
import inspect
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import ray
from ray import cloudpickle

from windrow.core.errors import PlanError, WindrowError
from windrow.core.source import BlockReader, Source
from windrow.pipeline.plan.program import Program
from windrow.pipeline.tasks.map_batches import MapBatches

T = TypeVar("T")

ON_THREADS = ', or run in this process with options(executor="threads")'

# levels of nested functions and objects that are searched
_MAX_DEPTH = 4
# Ray's limits are 100 kB for an argument and 10 MiB for all of a call.
_CHUNK_BYTES, _MAX_BYTES = 90_000, 8 * 2**20


def export_code() -> None:
    """Make Ray export functions and classes from this process again, if RayDP has switched that off.

    RayDP sets ``load_code_from_local`` for its calls into Java, and leaves it set in this process and in
    workers that are reused later. With it, Ray does not export anything that can be imported. Workers without
    the switch look only for exported code, so an actor of such a process never starts there.
    """
    worker = ray._private.worker.global_worker
    if getattr(worker, "load_code_from_local", False):
        worker.set_load_code_from_local(False)


class _Unpicklable(NamedTuple):
    """An object that cannot be pickled: its description, the object, and the error."""

    path: str
    value: Any
    error: Exception


def call_with_picklable(
    call: Callable[[], T], maps: Sequence[MapBatches], source: Source | BlockReader, *, otherwise: str
) -> T:
    """Run a call that sends transforms and a source to Ray; a `PlanError` names the one that cannot be pickled.

    ``otherwise`` is the alternative to making it picklable, which ends the error's last sentence.
    """
    try:
        return call()
    except WindrowError:
        raise
    except Exception as error:
        failed = error
    # outside the handler, so that Ray's error, pages long, is not shown as the context of this one
    _check_picklable(maps, source, otherwise)
    raise failed


def _check_picklable(maps: Sequence[MapBatches], source: Source | BlockReader, otherwise: str) -> None:
    for stage in maps:
        found = _find_in_stage(stage)
        if found is not None:
            raise PlanError(
                f"{stage.name} cannot be sent to Ray's workers, because {found.path} "
                f"({_describe_type(found.value)}) cannot be pickled: {_describe_error(found.error)}. Create it "
                f"inside the function{otherwise}"
            ) from found.error
    failed = _pickle_error(source)
    if failed is not None:
        name = source.describe() if hasattr(source, "describe") else type(source).__name__
        raise PlanError(
            f"the source ({name}) cannot be sent to Ray's workers, because it cannot be pickled: "
            f"{_describe_error(failed)}. Pass read_* and from_* arguments that can be pickled (filesystem=, "
            f"storage_options=){otherwise}"
        ) from failed


def _find_in_stage(stage: MapBatches) -> _Unpicklable | None:
    values = [
        *((f"its argument fn_args[{at}]", value) for at, value in enumerate(stage.fn_args)),
        *((f"its argument {name!r}", value) for name, value in stage.fn_kwargs.items()),
        *(
            (f"its argument fn_constructor_args[{at}]", value)
            for at, value in enumerate(stage.fn_constructor_args)
        ),
        *((f"its argument {name!r}", value) for name, value in stage.fn_constructor_kwargs.items()),
    ]
    for path, value in values:
        if (error := _pickle_error(value)) is not None:
            return _Unpicklable(path, value, error)
    error = _pickle_error(stage.fn)
    return None if error is None else _find_cause(_Unpicklable("the function", stage.fn, error), _MAX_DEPTH)


def _find_cause(found: _Unpicklable, depth: int) -> _Unpicklable:
    """Find the innermost object that keeps ``found`` from being pickled."""
    for path, value in _referenced_values(found.value) if depth else ():
        error = _pickle_error(value)
        if error is not None:
            of = "" if depth == _MAX_DEPTH else f" of {found.path.removeprefix('its ')}"
            return _find_cause(_Unpicklable(f"its {path}{of}", value, error), depth - 1)
    return found


def _referenced_values(value: Any) -> Iterator[tuple[str, Any]]:
    """Values that are pickled together with a function or a callable object, with their descriptions."""
    if isinstance(value, functools.partial):
        yield from ((f"argument {at}", each) for at, each in enumerate(value.args))
        yield from ((f"argument {name!r}", each) for name, each in value.keywords.items())
        yield f"function {getattr(value.func, '__name__', value.func)!r}", value.func
    elif inspect.ismethod(value):
        yield f"object of type {type(value.__self__).__qualname__}", value.__self__
    elif inspect.isfunction(value):
        parameters = inspect.signature(value).parameters.values()
        yield from (
            (f"default argument {each.name!r}", each.default)
            for each in parameters
            if each.default is not inspect.Parameter.empty
        )
        names = inspect.getclosurevars(value)
        yield from ((f"variable {name!r}", each) for name, each in names.nonlocals.items())
        yield from ((f"global variable {name!r}", each) for name, each in names.globals.items())
    else:
        yield from ((f"attribute {name!r}", each) for name, each in getattr(value, "__dict__", {}).items())


def _pickle_error(value: Any) -> Exception | None:
    try:
        cloudpickle.dumps(value)
    except Exception as error:  # whatever a user's __reduce__ raises
        return error
    return None


def _describe_type(value: Any) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _describe_error(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def pack_program(program: Program) -> Sequence[Any]:
    """Return arguments that hold a program: pieces of its pickle, or a list with the reference to it.

    The reference is needed where the program holds references itself, or is very large. Then the caller must keep
    it, or the actor cannot be restarted.
    """
    context = ray._private.worker.global_worker.get_serialization_context()
    # Ray counts references only in what it pickles itself, and without it some sources leave them out
    data = b"" if context.serialize(program).contained_object_refs else cloudpickle.dumps(program)
    if not data or len(data) > _MAX_BYTES:
        return [[ray.put(program)]]
    return [data[at : at + _CHUNK_BYTES] for at in range(0, len(data), _CHUNK_BYTES)]


def unpack_program(packed: Sequence[Any]) -> Program:
    """Return the program that arguments hold."""
    first = packed[0]
    program = ray.get(first[0]) if isinstance(first, list) else pickle.loads(b"".join(packed))
    assert isinstance(program, Program)
    return program
