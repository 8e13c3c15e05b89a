"""Libraries in C that setuptools built with the package, for ctypes."""

from __future__ import annotations

import ctypes
from importlib.util import find_spec
from typing import Any

import pyarrow as pa
from numpy.typing import NDArray

__all__ = ["address_of", "load_library"]


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
