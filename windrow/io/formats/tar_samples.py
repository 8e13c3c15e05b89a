"""Group the members of a tar archive to samples: adjacent members share a key, the name up to its first dot."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

__all__ = ["Member", "Sample", "TarError", "group_members", "iter_members"]

_BLOCK_BYTES = 512
# the same rule as in the webdataset library
_NAME = re.compile(r"^(?P<key>(?:.*/|)[^./][^./]*)\.(?P<extension>[^/]+)$")


class TarError(ValueError):
    """The data is not a tar archive, is truncated, or its members do not form samples."""


@dataclass(frozen=True)
class Member:
    """A member of an archive: its sample's key, its extension, its bytes, and the offset of their end."""

    key: str
    extension: str
    content: pa.Buffer
    end: int


@dataclass(frozen=True)
class Sample:
    """The members that share a key, by extension, and the offset of the last one's end."""

    key: str
    members: dict[str, pa.Buffer]
    end: int


def iter_members(data: pa.Buffer, *, whole: bool = True) -> Iterator[Member]:
    """Iterate over the members of samples; unless ``whole``, ``data`` is a head, and iteration stops where it ends.

    Skips directories, links, names without an extension, and names that begin and end with ``__``.

    Raises
    ------
    TarError
        If the archive is corrupt or truncated, as far as tar can detect it (headers have checksums,
        contents do not), or a member is sparse.
    """
    try:
        with tarfile.open(fileobj=pa.BufferReader(data), mode="r:") as archive:
            for info in archive:
                if info.issparse():
                    raise TarError(
                        f"{info.name!r} is a sparse member, which is not supported: write the archive without -S"
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
    """Require zero blocks at the end of an archive; Python's reader silently stops at anything else as well."""
    if len(rest) < _BLOCK_BYTES or rest[:_BLOCK_BYTES].any():
        raise TarError(f"from byte {at:,} on it is truncated or corrupt")
    if rest.any():
        raise TarError(f"it goes on after its end at byte {at:,}: write several archives as several files")


def group_members(members: Iterable[Member], *, whole: bool = True) -> Iterator[Sample]:
    """Group members to samples, in order; unless ``whole``, drops the last sample, which can be incomplete.

    Raises
    ------
    TarError
        If a sample has two members with one extension.
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
