"""How the bytes of a file encode text: compression by suffix or name, and text encodings, converted to UTF-8."""

from __future__ import annotations

import codecs
import lzma
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.core.errors import PlanError
from windrow.io.formats.varints import parse_varint

INFER = "infer"

_SUFFIXES = {
    ".bz2": "bz2",
    ".gz": "gzip",
    ".gzip": "gzip",
    ".lz4": "lz4",
    ".tgz": "gzip",
    ".xz": "xz",
    ".zlib": "zlib",
    ".zst": "zstd",
    ".zstd": "zstd",
}
_CODECS = tuple(sorted(set(_SUFFIXES.values())))
_STEP_BYTES = 2**20
_HEAD_STEP_BYTES = 16 * 1024
_XZ_PADDING = bytes(4)
_SNAPPY_RATIO = 32
# codecs that Arrow lacks
_PYTHON: Mapping[str, Callable[[], Any]] = {"xz": lzma.LZMADecompressor, "zlib": zlib.decompressobj}
_UTF8 = "utf-8"


def check_compression(compression: str | None) -> str | None:
    """Normalise a codec name to lower case; ``"infer"`` and None pass."""
    if compression is None:
        return None
    name = compression.lower()
    if name != INFER and name not in _CODECS:
        known = ", ".join(map(repr, _CODECS))
        raise PlanError(f"compression={compression!r}: use {known}, 'infer' (by suffix) or None")
    return name


def find_codec(compression: str | None, path: str) -> str | None:
    """The codec of a file; None if it is not compressed.

    >>> find_codec("infer", "trips.csv.gz"), find_codec("infer", "trips.csv"), find_codec("zstd", "trips.csv")
    ('gzip', None, 'zstd')
    """
    if compression != INFER:
        return compression
    return next((codec for suffix, codec in _SUFFIXES.items() if path.lower().endswith(suffix)), None)


def decompress(codec: str | None, data: pa.Buffer, *, whole: bool = True) -> pa.Buffer:
    """Decompress a whole file; an OSError if it is corrupt or truncated.

    Unless ``whole``, decompress as much of its head as possible; nothing if its very beginning is corrupt.
    """
    if codec is None or not data.size:
        return data
    return (_join_streams if codec in _PYTHON else _stream)(codec, data, whole=whole)


def decompress_snappy(data: pa.Buffer) -> pa.Buffer:
    """Decompress one block of Snappy without framing, which states its decompressed size first."""
    view = memoryview(data).cast("B")
    try:
        size, _ = parse_varint(view, 0)
    except IndexError as error:
        raise OSError(f"{len(view):,} bytes of Snappy end within the size that they state") from error
    # a copy of 3 bytes makes at most 64, so more is not Snappy and would only take memory
    if size > _SNAPPY_RATIO * len(view):
        raise OSError(f"{len(view):,} bytes of Snappy cannot hold {size:,}")
    return pa.decompress(data, decompressed_size=size, codec="snappy")


def _stream(codec: str, data: pa.Buffer, *, whole: bool) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.CompressedInputStream(pa.BufferReader(data), codec) as stream:
        try:
            while part := stream.read(_STEP_BYTES if whole else _HEAD_STEP_BYTES):
                sink.write(part)
        except OSError:
            # a head usually ends inside a frame
            if whole:
                raise
    return sink.getvalue()


def _join_streams(codec: str, data: pa.Buffer, *, whole: bool) -> pa.Buffer:
    """Decompress concatenated streams; any other bytes between or after them are an error."""
    sink = pa.BufferOutputStream()
    view, at = memoryview(data), 0
    stream = _PYTHON[codec]()
    try:
        while at < len(view):
            step = view[at : at + (_STEP_BYTES if whole else _HEAD_STEP_BYTES)]
            sink.write(stream.decompress(step))
            at += len(step) - len(stream.unused_data)
            if stream.eof:
                at = _skip_padding(view, at) if codec == "xz" else at
                stream = stream if at == len(view) else _PYTHON[codec]()
        if whole and not stream.eof:
            raise OSError("Truncated compressed stream")
    except (zlib.error, lzma.LZMAError, EOFError) as error:
        if whole:
            raise OSError(f"from byte {at:,} on: {error}") from error
    return sink.getvalue()


def _skip_padding(view: memoryview, at: int) -> int:
    while view[at : at + len(_XZ_PADDING)] == _XZ_PADDING:
        at += len(_XZ_PADDING)
    return at


def check_encoding(encoding: str) -> str:
    """Normalise the name of an encoding.

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
