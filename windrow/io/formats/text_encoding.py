"""Text encodings: which can be split at newline bytes, and conversion of all of them to UTF-8."""

from __future__ import annotations

import codecs

import numpy as np
import pyarrow as pa

from windrow.core.errors import PlanError

__all__ = ["check_encoding", "check_utf8", "decode_head", "decode_text", "is_cuttable"]

_UTF8 = "utf-8"


def check_encoding(encoding: str) -> str:
    """Normalise the name of an encoding.

    Examples
    --------
    >>> check_encoding("latin1")
    'iso8859-1'
    """
    try:
        name = codecs.lookup(encoding).name
        # rejects codecs that are not text encodings: base64 is not found by decode(), idna fails
        bytes(range(256)).decode(encoding, "replace")
    except (LookupError, TypeError, UnicodeError) as error:
        raise PlanError(
            f"encoding={encoding!r} is unknown: use a name like 'utf-8', 'latin-1' or 'utf-16'"
        ) from error
    # a byte order mark is skipped either way
    return _UTF8 if name in ("utf-8", "utf-8-sig", "ascii") else name


def is_cuttable(encoding: str) -> bool:
    r"""Whether the newline byte always is a newline, never part of another character.

    Examples
    --------
    >>> [is_cuttable(name) for name in ("utf-8", "iso8859-1", "utf-16", "cp037")]
    [True, True, False, False]
    """
    if encoding == _UTF8:
        return True
    one_byte = len(bytes(range(256)).decode(encoding, "replace")) == 256
    # EBCDIC encodes newlines as other bytes
    return one_byte and b"\n".decode(encoding) == "\n" and "\n".encode(encoding) == b"\n"


def check_utf8(text: pa.Buffer) -> None:
    """Raise ``UnicodeDecodeError`` if the text is not valid UTF-8."""
    ends = pa.py_buffer(np.array([0, text.size], np.int64))
    try:
        pa.Array.from_buffers(pa.large_string(), 1, [None, ends, text]).validate(full=True)
    except pa.ArrowInvalid:
        # slower, but reports the position
        bytes(text).decode()


def decode_text(data: pa.Buffer, encoding: str, *, at_start: bool) -> pa.Buffer:
    """Convert stored bytes to UTF-8, without the byte order mark at the beginning of a file.

    UTF-8 input is not validated here: the parser does that.
    """
    if encoding != _UTF8:
        data = pa.py_buffer(bytes(data).decode(encoding).encode())
    marked = at_start and bytes(data[:3]) == codecs.BOM_UTF8
    return data.slice(3) if marked else data


def decode_head(data: pa.Buffer, encoding: str, *, whole: bool) -> pa.Buffer:
    """Convert a file's head to UTF-8; unless ``whole``, it can end inside a character."""
    if encoding != _UTF8:
        decoder = codecs.getincrementaldecoder(encoding)()
        data = pa.py_buffer(decoder.decode(bytes(data), whole).encode())
    return decode_text(data, _UTF8, at_start=True)
