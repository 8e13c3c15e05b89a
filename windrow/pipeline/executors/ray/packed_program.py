"""Sends a program to an actor so that Ray can restart the actor.

Ray 2.60 keeps an argument of more than 100 kB in its object store, deletes it once the actor has started, and cannot
restart the actor any more (ray-project/ray#53727). A program has some 80 bytes for each file, so a thousand files
suffice. Smaller arguments are kept with the actor.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import ray
from ray import cloudpickle

from windrow.pipeline.plan.program import Program

__all__ = ["pack_program", "unpack_program"]

# Ray's limits are 100 kB for an argument and 10 MiB for all of a call.
_CHUNK_BYTES, _MAX_BYTES = 90_000, 8 * 2**20


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
