"""Filesystems after a fork: fsspec's asynchronous ones refuse to work there, without the thread of their event loop."""

from __future__ import annotations

import os
from typing import Any

from windrow.core.system.processes import call_in_forked_children

# of each filesystem that the parent process made: it, so that its id stays its own, and its copy
_COPIES: dict[int, tuple[Any, Any]] = {}
call_in_forked_children(_COPIES.clear)


def in_this_process(filesystem: Any) -> Any:
    """Return the filesystem, or a copy of it where this process was forked from the one that made it."""
    if not _is_inherited(filesystem):
        return filesystem
    key = id(filesystem)
    if key not in _COPIES:
        # of two threads, both get the first copy
        _COPIES.setdefault(key, (filesystem, _copy(filesystem)))
    return _COPIES[key][1]


def _is_inherited(value: Any) -> bool:
    """Whether a filesystem, or one that it wraps, is asynchronous and of another process."""
    own = getattr(value, "__dict__", {})
    if own.get("_pid", os.getpid()) != os.getpid():
        return True
    return any(map(_is_inherited, [*own.get("storage_args", ()), *own.get("storage_options", {}).values()]))


def _copy(value: Any) -> Any:
    if not _is_inherited(value):
        return value
    options = {name: _copy(option) for name, option in value.storage_options.items()}
    return type(value)(*map(_copy, value.storage_args), **options)
