"""Reads the place of this process from a mesh of devices."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from windrow.core.errors import PlanError
from windrow.pipeline.plan.mesh_place import MeshPlace

_DATA_PREFIXES = ("dp", "fsdp", "data", "batch")


def find_place(
    mesh: Any, data_dims: Sequence[str] | None = None, sequence_dims: Sequence[str] = ()
) -> MeshPlace:
    """Return the place of this process on a ``torch.distributed.device_mesh.DeviceMesh``.

    ``data_dims`` None: the dimensions whose names begin with ``dp``, ``fsdp``, ``data`` or ``batch``.
    """
    names, sizes, at = _read_mesh(mesh)
    where = dict(zip(names, zip(at, sizes, strict=True), strict=True))
    if data_dims is None:
        data = [name for name in names if name.startswith(_DATA_PREFIXES)]
        if not data:
            raise PlanError(
                f"none of the mesh's dimensions {_list(names)} begins with {_list(_DATA_PREFIXES)}: say with "
                "data_dims= along which of them ranks get different rows; data_dims=() if all of them get the same"
            )
    else:
        data = _check_names("data_dims", data_dims, names)
    sequence = _check_names("sequence_dims", sequence_dims, names)
    both = sorted({*data} & {*sequence})
    if both:
        raise PlanError(
            f"{_list(both)} cannot be in data_dims and in sequence_dims: along a data dimension ranks get different "
            "rows, along a sequence dimension parts of the same rows"
        )
    rank, world_size = _flatten(where, [name for name in names if name in data])
    replica, replicas = _flatten(where, [name for name in names if name not in data])
    part, parts = _flatten(where, [name for name in names if name in sequence])
    return MeshPlace(rank, world_size, replica, replicas, part, parts, where, tuple(data), tuple(sequence))


def _read_mesh(mesh: Any) -> tuple[tuple[str, ...], tuple[int, ...], tuple[int, ...]]:
    """The names and sizes of a mesh's dimensions, and the coordinates of this process."""
    shape, coordinate = getattr(mesh, "shape", None), getattr(mesh, "get_coordinate", None)
    if shape is None or coordinate is None:
        raise PlanError(
            f"mesh={mesh!r} is not a torch.distributed.device_mesh.DeviceMesh: make one with init_device_mesh(), or "
            "pass rank=, world_size= and replica=(index, count)"
        )
    names = getattr(mesh, "mesh_dim_names", None)
    if not names:
        raise PlanError(
            "the dimensions of the mesh have no names: give init_device_mesh() mesh_dim_names=, such as "
            "('dp', 'tp'), or pass rank=, world_size= and replica=(index, count)"
        )
    at = coordinate()
    if at is None:
        raise PlanError(
            f"this process is not on the mesh of {' x '.join(map(str, shape))} devices ({', '.join(names)}): call "
            "shard() on its ranks only"
        )
    return tuple(names), tuple(map(int, shape)), tuple(map(int, at))


def _check_names(argument: str, given: Sequence[str], names: Sequence[str]) -> list[str]:
    if isinstance(given, str):
        raise PlanError(f"{argument}={given!r} must be a sequence of names, such as ({given!r},)")
    unknown = [name for name in given if name not in names]
    if unknown:
        raise PlanError(f"{argument}={tuple(given)!r} names {_list(unknown)}: the mesh has {_list(names)}")
    return list(given)


def _flatten(where: Mapping[str, tuple[int, int]], names: Sequence[str]) -> tuple[int, int]:
    """Index and size over several dimensions, the last of which counts fastest."""
    index = 0
    for name in names:
        at, size = where[name]
        index = index * size + at
    return index, math.prod(where[name][1] for name in names)


def _list(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))
