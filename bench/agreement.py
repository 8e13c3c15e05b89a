"""All-reduce of one number over trainer processes, by files."""

from __future__ import annotations

import time
from pathlib import Path

__all__ = ["agree_on_maximum", "remove_agreement"]

_POLL_SECONDS = 0.005


def agree_on_maximum(rendezvous: str, own: float, rank: int, trainers: int, timeout_seconds: float) -> float:
    """The maximum of all trainers' numbers; each trainer writes its own to a file next to ``rendezvous``.

    Raises
    ------
    TimeoutError
        If a trainer does not write its number in time.
    """
    draft = _file_of(rendezvous, rank).with_suffix(".draft")
    draft.write_text(repr(own))
    draft.rename(_file_of(rendezvous, rank))
    until = time.monotonic() + timeout_seconds
    missing = set(range(trainers))
    while missing := {other for other in missing if not _file_of(rendezvous, other).exists()}:
        if time.monotonic() > until:
            raise TimeoutError(f"trainers {sorted(missing)} did not report their pace")
        time.sleep(_POLL_SECONDS)
    return max(float(_file_of(rendezvous, other).read_text()) for other in range(trainers))


def remove_agreement(rendezvous: str) -> None:
    """Remove all files of a rendezvous."""
    path = Path(rendezvous)
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink(missing_ok=True)


def _file_of(rendezvous: str, rank: int) -> Path:
    return Path(f"{rendezvous}-{rank}.number")
