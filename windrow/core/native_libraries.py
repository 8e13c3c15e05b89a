"""Loads the package's compiled C libraries with ctypes, and reports those that are missing."""

from __future__ import annotations

import ctypes
from importlib.util import find_spec
from typing import Any

import pyarrow as pa
from numpy.typing import NDArray

__all__ = ["address_of", "load_library", "missing_libraries", "missing_library_warnings"]

_missing: list[str] = []


def load_library(module: str, functions: dict[str, tuple[list[Any], Any]]) -> Any:
    """Load the library that setuptools built as ``module``.

    Parameters
    ----------
    functions
        Argument types and result type of each function, by name.

    Returns
    -------
    ctypes.CDLL or None
        None if it was not built, or was built for another machine or version.
    """
    library = _load(module, functions)
    if library is None and module not in _missing:
        _missing.append(module)
    return library


def missing_libraries() -> tuple[str, ...]:
    """Module names of the libraries that this process tried and failed to load."""
    return tuple(sorted(_missing))


def missing_library_warnings() -> tuple[str, ...]:
    """One warning that names the libraries that could not be loaded, or none.

    Examples
    --------
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


def _load(module: str, functions: dict[str, tuple[list[Any], Any]]) -> Any:
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        return None
    try:
        library = ctypes.CDLL(spec.origin)
        for name, (arguments, result) in functions.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, result
    except (OSError, AttributeError):
        return None
    return library


def address_of(array: NDArray[Any]) -> int:
    """Address of a contiguous array; an error for any other array."""
    # array.ctypes or __array_interface__ take 1.1 µs, since NumPy also builds a description; this takes 0.2 µs
    return int(pa.py_buffer(array).address)
