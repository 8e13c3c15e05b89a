"""Libraries in C that setuptools built with the package, for ctypes."""

from __future__ import annotations

import ctypes
from importlib.util import find_spec
from typing import Any

import pyarrow as pa
from numpy.typing import NDArray

__all__ = ["address_of", "load_library", "missing_libraries", "missing_library_warnings"]

_missing: list[str] = []


def load_library(module: str, functions: dict[str, tuple[list[Any], Any]]) -> Any:
    """Load the library that was built as ``module``.

    Parameters
    ----------
    functions
        The types of arguments and of the result, by the name of each function.

    Returns
    -------
    ctypes.CDLL or None
        None where it was not built, or built for another machine or version.
    """
    library = _load(module, functions)
    if library is None and module not in _missing:
        _missing.append(module)
    return library


def missing_libraries() -> tuple[str, ...]:
    """The libraries that this process has looked for and could not load, by their modules' names."""
    return tuple(sorted(_missing))


def missing_library_warnings() -> tuple[str, ...]:
    """What a user should know of them: a line, or none.

    Examples
    --------
    >>> describe_missing()
    ()
    """
    names = missing_libraries()
    if not names:
        return ()
    return (
        f"windrow's compiled {'libraries' if len(names) > 1 else 'library'} {' and '.join(names)} cannot be loaded: "
        "Arrow and NumPy do the work instead, in the same order but several times slower. Install windrow from "
        "a wheel for this platform, or again where a C compiler is installed",
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
    """Where a contiguous array begins; of another it is an error."""
    # NumPy takes 1.1 µs to tell, for it also describes the array in words; this takes 0.2
    return int(pa.py_buffer(array).address)
