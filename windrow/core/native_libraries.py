"""Loads the package's compiled C libraries with ctypes, and reports those that are missing."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

import pyarrow as pa
from numpy.typing import NDArray

_missing: set[str] = set()


def load_library(module: str, functions: dict[str, tuple[list[Any], Any]]) -> Any:
    """Load the library that setuptools built as ``module``; None if it was not built, or for another version.

    ``functions`` has the argument types and the result type of each function.
    """
    spec = find_spec(module)
    if spec is not None and spec.origin is not None:
        with suppress(OSError, AttributeError):
            library = ctypes.CDLL(spec.origin)
            for name, (arguments, result) in functions.items():
                function = getattr(library, name)
                function.argtypes, function.restype = arguments, result
            return library
    _missing.add(module)
    return None


class Address:
    """The type of a pointer argument: an array is passed by its address; an address or None as it is."""

    @staticmethod
    def from_param(value: Any) -> ctypes.c_void_p:
        # not by `address_of`: kernels of small runs have ten arguments, and a call takes 0.1 µs
        return ctypes.c_void_p(
            value if value is None or isinstance(value, int) else pa.py_buffer(value).address
        )


def missing_libraries() -> tuple[str, ...]:
    """Module names of the libraries that this process tried and failed to load."""
    return tuple(sorted(_missing))


def missing_library_warnings() -> tuple[str, ...]:
    """One warning that names the libraries that could not be loaded, or none.

    >>> missing_library_warnings()
    ()
    """
    names = missing_libraries()
    if not names:
        return ()
    return (
        f"windrow's compiled {'libraries' if len(names) > 1 else 'library'} {' and '.join(names)} cannot be loaded: "
        "Arrow and NumPy do the work instead, in the same order but several times slower. Install windrow from "
        "a wheel for this platform, or reinstall it where a C compiler is available",
    )


def address_of(array: NDArray[Any]) -> int:
    """Address of a contiguous array; an error for any other array."""
    # array.ctypes or __array_interface__ take 1.1 µs, since NumPy also builds a description; this takes 0.2 µs
    return int(pa.py_buffer(array).address)
