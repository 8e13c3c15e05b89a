"""Encodings of text: which can be cut at newlines as bytes, and everything as UTF-8."""

from __future__ import annotations

import codecs

import numpy as np
import pyarrow as pa

from windrow.core.errors import PlanError

__all__ = ["check_encoding", "check_utf8", "decode_head", "decode_text", "is_cuttable"]

_UTF8 = "utf-8"


def check_encoding(encoding: str) -> str:
    """The canonical name of an encoding.

    Raises
    ------
    PlanError
        If Python knows none of that name.

    Examples
    --------
    >>> check_encoding("latin1")
    'iso8859-1'
    """
    try:
        name = codecs.lookup(encoding).name
        # codecs of Python's that are no encodings of text are not found so, such as base64, or fail,
        # such as idna
        bytes(range(256)).decode(encoding, "replace")
    except (LookupError, TypeError, UnicodeError) as error:
        raise PlanError(
            f"encoding={encoding!r} is unknown: use a name like 'utf-8', 'latin-1' or 'utf-16'"
        ) from error
    # a byte order mark is skipped in any case
    return _UTF8 if name in ("utf-8", "utf-8-sig", "ascii") else name


def is_cuttable(encoding: str) -> bool:
    r"""Whether the byte of a newline is always a newline, and never part of another character.

    Examples
    --------
    >>> [is_cuttable(name) for name in ("utf-8", "iso8859-1", "utf-16", "cp037")]
    [True, True, False, False]
    """
    if encoding == _UTF8:
        return True
    one_byte = len(bytes(range(256)).decode(encoding, "replace")) == 256
    # EBCDIC has other bytes for newlines
    return one_byte and b"\n".decode(encoding) == "\n" and "\n".encode(encoding) == b"\n"


def check_utf8(text: pa.Buffer) -> None:
    """Raise a ``UnicodeDecodeError`` for text that is no UTF-8."""
    ends = pa.py_buffer(np.array([0, text.size], np.int64))
    try:
        pa.Array.from_buffers(pa.large_string(), 1, [None, ends, text]).validate(full=True)
    except pa.ArrowInvalid:
        # slower, and tells the place
        bytes(text).decode()


def decode_text(data: pa.Buffer, encoding: str, *, begins: bool) -> pa.Buffer:
    """UTF-8 of what is stored, without the byte order mark at a file's beginning.

    Bytes that are no UTF-8 are left for those who parse them.

    Raises
    ------
    UnicodeDecodeError
        If the bytes are not of that encoding, and that is another one than UTF-8.
    """
    if encoding != _UTF8:
        data = pa.py_buffer(bytes(data).decode(encoding).encode())
    marked = begins and bytes(data[:3]) == codecs.BOM_UTF8
    return data.slice(3) if marked else data


def decode_head(data: pa.Buffer, encoding: str, *, whole: bool) -> pa.Buffer:
    """UTF-8 of a file's beginning, which may end within a character unless it is ``whole``."""
    if encoding != _UTF8:
        decoder = codecs.getincrementaldecoder(encoding)()
        data = pa.py_buffer(decoder.decode(bytes(data), whole).encode())
    return decode_text(data, _UTF8, begins=True)
