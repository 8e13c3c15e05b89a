"""Globs as users write them: which part names a folder, and which files a pattern and a folder leave out."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from windrow.io.storage.filesystems import is_visible

_MAGIC = re.compile(r"[*?\[]")


class Glob(NamedTuple):
    """A path with wildcards: the folder before the first part that has some, as it is called, and the parts from there.

    ``root`` ends in no slash, unless it is the root of the filesystem.
    """

    root: str
    parts: tuple[str, ...]

    @property
    def pattern(self) -> str:
        """The pattern for a filesystem, in which a name that looks like a pattern stands for itself."""
        root = [re.sub(r"([*?\[])", r"[\1]", self.root).rstrip("/")] if self.root else []
        return "/".join([*root, *self.parts])

    def shows(self, relative: str) -> bool:
        """Whether a match below the root is read: no part of its name is hidden, unless the pattern says so.

        >>> glob = Glob("data", ("*", "_part*"))
        >>> glob.shows("a/_part0"), glob.shows("_a/_part0")
        (True, False)
        """
        names, parts = relative.split("/"), self.parts
        deep = [place for place, part in enumerate(parts) if part == "**"]
        if deep:
            before, after = deep[0], len(parts) - 1 - deep[-1]
        else:
            before, after = len(parts), 0
        asked = [*zip(names[:before], parts[:before], strict=False)]
        rest = names[before:]
        if after:
            asked += zip(rest[-after:], parts[-after:], strict=False)
            rest = rest[:-after]
        return all(is_visible(name) or part.startswith(name[0]) for name, part in asked) and (
            not rest or is_visible("/".join(rest))
        )


def has_wildcards(path: str) -> bool:
    """Whether a path can be a pattern."""
    return _MAGIC.search(path) is not None


def split_glob(path: str, exists: Callable[[str], bool]) -> Glob | None:
    """Split a path at its first part with wildcards that is no name of a file or folder; None if it has none.

    >>> split_glob("data/a[1]/*.parquet", {"data/a[1]"}.__contains__)
    Glob(root='data/a[1]', parts=('*.parquet',))
    """
    parts = path.split("/")
    for place, part in enumerate(parts):
        if has_wildcards(part) and (not part.strip("*") or not exists("/".join(parts[: place + 1]))):
            return Glob(
                "/".join(parts[:place]) or ("/" if path.startswith("/") else ""), tuple(parts[place:])
            )
    return None
