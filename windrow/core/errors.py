"""The exception hierarchy of windrow.

::

    WindrowError
    ├── PlanError       (also a ValueError)    invalid argument, combination or size
    ├── SourceError     (also an OSError)      data that cannot be found or read
    ├── StateError      (also a ValueError)    a checkpoint that does not match the data or pipeline
    ├── TransformError                         a user's function raised or violated its declared contract
    └── StallError      (also a TimeoutError)  no progress for too long; names what waits for what

Every message states what happened, where (path, column, row group, epoch, window) and how to fix it.
Exceptions of other libraries are wrapped where they enter windrow, with the original as ``__cause__``.
"""

from __future__ import annotations

from typing import NamedTuple

from windrow.core.terminal_text import escape_controls

__all__ = ["PlanError", "SourceError", "StallError", "StateError", "TransformError", "WindrowError"]


class WindrowError(Exception):
    """Base class of all errors that windrow raises on purpose."""

    def __str__(self) -> str:
        # names of files and columns are quoted in messages, and tracebacks reach terminals
        return escape_controls(super().__str__(), keep="\n")


class PlanError(WindrowError, ValueError):
    """The request is invalid: an argument, a combination of arguments, or a size."""


class SourceError(WindrowError, OSError):
    """Data is missing, unreadable or corrupt, or schemas differ between files."""


class StateError(WindrowError, ValueError):
    """A saved state does not match this data, pipeline or seed."""


class FailedRow(NamedTuple):
    """The row for which a transform failed: its rank in a block before the shuffle, or in an epoch behind it."""

    row: int
    block: int | None = None
    epoch: int | None = None


class TransformError(WindrowError):
    """A user's function raised, or its result violates what was declared for it."""

    # the rank in its batch, where neither block nor epoch is set
    _failed_row: FailedRow | None = None


class StallError(WindrowError, TimeoutError):
    """Nothing made progress for too long; the message names what waits for what."""
