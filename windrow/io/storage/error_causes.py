"""What an error of Arrow or of a filesystem means: one class of cause, and what to do about it.

Arrow's decoders raise ``ArrowInvalid``, or an ``OSError`` without errno, for bytes that contradict themselves. They
raise ``ArrowInvalid`` for columns of more than 2 GiB too, and ``ArrowNotImplementedError`` for both such columns
within lists and what Arrow does not support at all, so their text has to tell these apart.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

__all__ = ["Cause", "exceeds_arrow", "find_cause", "is_overflow", "shows_corruption"]

# parts of the messages for arrays that exceed 32-bit offsets
_OVERFLOWS = (
    "offset overflow",
    "chunked array outputs",
    "array cannot contain more than",
    "cannot reserve capacity",
)
_OVERFLOW_FIX = (
    "write the file with smaller row groups, or the column as large_string, large_binary or large_list, which have "
    "64-bit offsets"
)


@dataclass(frozen=True)
class Cause:
    """The class of cause of an error: what follows the file's name in a message, and the fix."""

    what: str
    fix: str


_CORRUPT = Cause("cannot be read", "it is corrupt: restore the file, rewrite it, or leave it out")
_TOO_MUCH_MEMORY = Cause(
    "does not fit into memory",
    "give the process more memory, or write the file with smaller row groups; if the file is small, it states wrong "
    "sizes: restore it",
)
_OVERFLOW = Cause("is too large for one Arrow array", _OVERFLOW_FIX)
_UNSUPPORTED = Cause(
    f"is not supported by pyarrow {pa.__version__}",
    "leave the column out (columns=), write it as another type or with another codec, or upgrade pyarrow",
)
_MISSING = Cause("the file is missing", "restore the file, or list the dataset again")
_FORBIDDEN = Cause("no read permission", "grant read permission")
_NOT_FILTERED = Cause(
    "cannot be read, or filter= fails on its rows",
    "check that the filter is defined for all values, or restore the file",
)
_FAILED = Cause("reading failed", "check the disk or the connection, and try again")
_UNKNOWN = Cause("cannot be read", "leave the file out, and report the error: no file should cause it")


def is_overflow(error: BaseException) -> bool:
    """Whether values need more than 32-bit offsets, which Arrow reports by several types of errors.

    >>> is_overflow(pa.ArrowInvalid("offset overflow while concatenating arrays"))
    True
    """
    if isinstance(error, pa.ArrowCapacityError):
        return True
    is_arrow = isinstance(error, (pa.ArrowInvalid, pa.ArrowNotImplementedError))
    return is_arrow and any(text in str(error) for text in _OVERFLOWS)


def exceeds_arrow(error: BaseException) -> bool:
    """Whether intact data is too large for Arrow or for memory, or of a kind that Arrow lacks."""
    return is_overflow(error) or isinstance(error, (pa.ArrowNotImplementedError, MemoryError))


def shows_corruption(error: BaseException) -> bool:
    """Whether a decoder that got all its bytes raises this because they contradict themselves."""
    if is_overflow(error):
        return False
    return type(error) is pa.ArrowInvalid or (type(error) is OSError and error.errno is None)


def find_cause(error: BaseException, *, local: bool, filters: bool) -> Cause:
    """Find the cause of an error that reading a file raised, or filtering its rows, if ``filters``.

    For a remote file, an ``OSError`` without errno can be one of its filesystem.
    """
    if is_overflow(error):
        return _OVERFLOW
    if isinstance(error, MemoryError):
        return _TOO_MUCH_MEMORY
    if isinstance(error, pa.ArrowNotImplementedError):
        return _UNSUPPORTED
    if isinstance(error, FileNotFoundError):
        return _MISSING
    if isinstance(error, PermissionError):
        return _FORBIDDEN
    if filters and isinstance(error, pa.ArrowInvalid):
        return _NOT_FILTERED
    if shows_corruption(error) and (local or not isinstance(error, OSError)):
        return _CORRUPT
    return _FAILED if isinstance(error, (OSError, EOFError)) else _UNKNOWN
