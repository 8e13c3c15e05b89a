"""Samples of a tar archive: neighbouring members that share a key, the name up to its first dot."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

__all__ = ["Member", "Sample", "TarError", "group_members", "iter_members"]

_BLOCK_BYTES = 512
# as the webdataset library splits names
_NAME = re.compile(r"^(?P<key>(?:.*/|)[^./][^./]*)\.(?P<extension>[^/]+)$")


class TarError(ValueError):
    """What is stored is no tar archive, or not a whole one, or its members are no samples."""


@dataclass(frozen=True)
class Member:
    """A file of a sample in an archive: the sample's key, its extension, its bytes, and where they end."""

    key: str
    extension: str
    content: pa.Buffer
    end: int


@dataclass(frozen=True)
class Sample:
    """The members that share a key, by extension; and where the last of them ends."""

    key: str
    members: dict[str, pa.Buffer]
    end: int


def iter_members(data: pa.Buffer, *, whole: bool = True) -> Iterator[Member]:
    """The files of samples in an archive, or in its beginning as far as they are ``whole``.

    Folders, links, names without an extension, and names between two ``__`` are passed over.

    Raises
    ------
    TarError
        If it is corrupt or truncated, as far as tar tells: headers have checksums, contents none;
        or if a member is sparse.
    """
    try:
        with tarfile.open(fileobj=pa.BufferReader(data), mode="r:") as archive:
            for info in archive:
                if info.issparse():
                    raise TarError(
                        f"{info.name!r} is a sparse member, which is not read: write the archive without -S"
                    )
                end = info.offset_data + info.size
                if end > data.size:
                    raise TarError(f"{info.name!r} is truncated")
                named = _NAME.match(info.name)
                if info.isreg() and named and not (info.name.startswith("__") and info.name.endswith("__")):
                    content = data.slice(info.offset_data, info.size)
                    yield Member(named["key"], named["extension"].lower(), content, end)
            stopped = archive.offset
    except (OSError, EOFError, tarfile.TarError, TarError) as error:
        if whole:
            raise TarError(str(error)) from error
        return
    if whole:
        _check_end(np.frombuffer(data, np.uint8)[stopped:], stopped)


def _check_end(rest: np.ndarray, at: int) -> None:
    """An archive ends with blocks of zeros; Python's reader stops without a word at anything else too."""
    if len(rest) < _BLOCK_BYTES or rest[:_BLOCK_BYTES].any():
        raise TarError(f"from byte {at:,} on it is truncated or corrupt")
    if rest.any():
        raise TarError(f"it goes on behind its end at byte {at:,}: write several archives as several files")


def group_members(members: Iterable[Member], *, whole: bool = True) -> Iterator[Sample]:
    """The samples of members in their order; unless ``whole``, the last one may be cut off and is left out.

    Raises
    ------
    TarError
        If a sample has two members of one extension.
    """
    sample: Sample | None = None
    for member in members:
        if sample is not None and sample.key != member.key:
            yield sample
            sample = None
        known = {} if sample is None else sample.members
        if member.extension in known:
            raise TarError(f"sample {member.key!r} has two members {member.extension!r}")
        sample = Sample(member.key, {**known, member.extension: member.content}, member.end)
    if sample is not None and whole:
        yield sample
