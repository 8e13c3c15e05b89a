"""How trainers in several processes agree on a number, as those do that average their gradients."""

from __future__ import annotations

import time
from pathlib import Path

__all__ = ["agree_on_largest", "forget_agreements"]

_LOOK_SECONDS = 0.005


def agree_on_largest(meeting: str, own: float, rank: int, trainers: int, timeout_seconds: float) -> float:
    """The largest of all trainers' numbers, once everybody has told its own by a file beside ``meeting``.

    Raises
    ------
    TimeoutError
        If somebody does not.
    """
    draft = _file_of(meeting, rank).with_suffix(".draft")
    draft.write_text(repr(own))
    draft.rename(_file_of(meeting, rank))
    until = time.monotonic() + timeout_seconds
    missing = set(range(trainers))
    while missing := {other for other in missing if not _file_of(meeting, other).exists()}:
        if time.monotonic() > until:
            raise TimeoutError(f"trainers {sorted(missing)} do not tell their pace")
        time.sleep(_LOOK_SECONDS)
    return max(float(_file_of(meeting, other).read_text()) for other in range(trainers))


def forget_agreements(meeting: str) -> None:
    """Remove all files of a meeting."""
    path = Path(meeting)
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink(missing_ok=True)


def _file_of(meeting: str, rank: int) -> Path:
    return Path(f"{meeting}-{rank}.number")
