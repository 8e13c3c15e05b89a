"""Maps parts of a file into memory without a file descriptor for each: Python's mmap keeps one as long as it lives."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any

from windrow.core.system.memory import (
    MADV_POPULATE_WRITE,
    MADV_REMOVE,
    MAP_PRIVATE,
    NAME,
    PROT_READ_WRITE,
    c_function,
)
from windrow.core.system.processes import call_before_forks

_FAILED = ctypes.c_void_p(-1).value
_SIZE, _NUMBER, _ADDRESS = ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p
_mmap = c_function("mmap", [_ADDRESS, _SIZE, _NUMBER, _NUMBER, _NUMBER, ctypes.c_long], _ADDRESS)
_munmap = c_function("munmap", [_ADDRESS, _SIZE], _NUMBER)
_madvise = c_function("madvise", [_ADDRESS, _SIZE, _NUMBER], _NUMBER)
# the sizes of private mappings by address; changed by single operations alone, since finalizers run anywhere
_PRIVATE: dict[int, int] = {}


class FileMapping:
    """A range of a file in memory, writable, until nothing refers to this object; arrays can be made of it.

    ``flags`` are `MAP_SHARED` or `MAP_PRIVATE`, and ``offset`` is that of a page. Raises a `MemoryError`.
    """

    __slots__ = ("__array_interface__", "__weakref__", "_unmap", "address", "size")

    def __init__(self, descriptor: int, size: int, flags: int, offset: int) -> None:
        # also where modules have been cleared at exit
        self._unmap: Callable[..., Any] | None = None
        if _mmap is None:
            raise MemoryError(f"windrow does not map files on {NAME}")
        address = _mmap(None, size, PROT_READ_WRITE, flags, descriptor, offset)
        if address == _FAILED:
            reason = os.strerror(ctypes.get_errno())
            raise MemoryError(f"{size:,} bytes of shared memory cannot be mapped: {reason}")
        self.address, self.size, self._unmap = int(address), size, _munmap
        if flags == MAP_PRIVATE:
            _PRIVATE[self.address] = size
        self.__array_interface__: dict[str, Any] = {
            "version": 3,
            "typestr": "|u1",
            "shape": (size,),
            "data": (self.address, False),
        }

    def give_back(self) -> None:
        """Return the pages to the system, also those of the file, where it takes them before the file is closed."""
        if _madvise is not None and MADV_REMOVE is not None:
            _madvise(self.address, self.size, MADV_REMOVE)

    def __del__(self, forget: Callable[..., Any] = _PRIVATE.pop) -> None:
        if self._unmap is not None:
            forget(self.address, None)
            self._unmap(self.address, self.size)


def _make_copies() -> None:
    """Copy all pages of private mappings, as writing to them would, without changing a byte.

    A page that nobody has written to is the file's, whose owner changes it once the mapping is not used here any more,
    although a forked child may still use its own.
    """
    if _madvise is not None and MADV_POPULATE_WRITE is not None:
        for address, size in list(_PRIVATE.items()):
            _madvise(address, size, MADV_POPULATE_WRITE)


call_before_forks(_make_copies)
