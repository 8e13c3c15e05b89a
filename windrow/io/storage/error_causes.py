"""What an error of Arrow or of a filesystem means: one class of cause, and what to do about it.

Arrow's decoders raise ``ArrowInvalid``, or an ``OSError`` without errno, for bytes that contradict themselves. They
raise ``ArrowInvalid`` for columns of more than 2 GiB too, and ``ArrowNotImplementedError`` for both such columns
within lists and what Arrow does not support at all, so their text has to tell these apart.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass

import pyarrow as pa

from windrow.io.storage.retries import find_status

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
    "holds what cannot be read here",
    "leave the column out (columns=), write it as another type, with another encoding or codec, or upgrade pyarrow "
    f"({pa.__version__} is installed)",
)
_UNSUPPORTED_FILTER = Cause(
    "holds what cannot be read here, or filter= is not defined for its types",
    "check filter=, leave the column out (columns=), or upgrade pyarrow",
)
_MISSING = Cause("the file is missing", "restore the file, or list the dataset again")
_FORBIDDEN = Cause("no read permission", "grant read permission")
# parts of the messages of Arrow's filesystems, which raise plain OSErrors
_MISSING_TEXTS = ("no_such_key", "resource_not_found", "no_such_bucket", "path does not exist")
_FORBIDDEN_TEXTS = (
    "access_denied",
    "accessdenied",
    "access denied",
    "forbidden",
    "invalid_access_key_id",
    "signature_does_not_match",
)
# Parquet's decoders raise plain OSErrors for what they do not support
_UNSUPPORTED_TEXT = "not yet implemented"
_NOT_FILTERED = Cause(
    "cannot be read, or filter= fails on its rows",
    "check that the filter is defined for all values, or restore the file",
)
_TOO_MANY_FILES = Cause("too many files are open", "raise the limit (ulimit -n), or use fewer workers")
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


def shows_corruption(error: BaseException, *, filters: bool = False) -> bool:
    """Whether a decoder that got all its bytes raises this because they contradict themselves.

    With ``filters`` a filter was evaluated too, for which Arrow raises ``ArrowInvalid`` for valid data as well.
    """
    if is_overflow(error) or is_unsupported(error) or (filters and isinstance(error, pa.ArrowInvalid)):
        return False
    return type(error) is pa.ArrowInvalid or (type(error) is OSError and error.errno is None)


def is_unsupported(error: BaseException) -> bool:
    """Whether a library says that it does not support what it was given.

    >>> is_unsupported(NotImplementedError("codec")), is_unsupported(OSError("Not yet implemented: encoding"))
    (True, True)
    """
    if isinstance(error, NotImplementedError):
        return True
    return type(error) is OSError and _UNSUPPORTED_TEXT in str(error).lower()


def is_forbidden(error: BaseException) -> bool:
    """Whether a filesystem or object storage refuses access, in whatever type its client raises.

    >>> is_forbidden(OSError("AWS Error ACCESS_DENIED during ListObjectsV2 operation"))
    True
    """
    if isinstance(error, PermissionError) or find_status(error)[0] in (401, 403):
        return True
    # Arrow's decoders quote values; its filesystems raise OSErrors
    if isinstance(error, (FileNotFoundError, pa.ArrowException)):
        return False
    return any(part in str(error).lower() for part in _FORBIDDEN_TEXTS)


def find_cause(error: BaseException, *, local: bool, filters: bool) -> Cause:
    """Find the cause of an error that reading a file raised, or filtering its rows, if ``filters``.

    For a remote file, an ``OSError`` without errno can be one of its filesystem.

    >>> find_cause(OSError("Not yet implemented: DELTA encoding"), local=True, filters=False).what
    'holds what cannot be read here'
    >>> find_cause(pa.ArrowInvalid("a page ends early"), local=True, filters=False).fix
    'it is corrupt: restore the file, rewrite it, or leave it out'
    """
    if is_overflow(error):
        return _OVERFLOW
    if isinstance(error, MemoryError):
        return _TOO_MUCH_MEMORY
    if is_unsupported(error):
        return _UNSUPPORTED_FILTER if filters else _UNSUPPORTED
    text = "" if local else str(error).lower()
    is_missing = isinstance(error, FileNotFoundError) or find_status(error)[0] in (404, 410)
    if is_missing or any(part in text for part in _MISSING_TEXTS):
        return _MISSING
    if is_forbidden(error):
        return _FORBIDDEN
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return _TOO_MANY_FILES
    if filters and isinstance(error, pa.ArrowInvalid):
        return _NOT_FILTERED
    if shows_corruption(error) and (local or not isinstance(error, OSError)):
        return _CORRUPT
    return _FAILED if not local or isinstance(error, (OSError, EOFError)) else _UNKNOWN
