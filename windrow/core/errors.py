"""The errors that windrow raises.

::

    WindrowError
    ├── PlanError       (also a ValueError)    what was asked cannot be planned
    ├── SourceError     (also an OSError)      data that cannot be found or read
    ├── StateError      (also a ValueError)    a saved state that does not fit
    ├── TransformError                         a user's function failed or broke its promise
    └── StallError      (also a TimeoutError)  nothing moved for too long; says who waits for whom

Every message says what happened, where (path, column, row group, epoch, window)
and what to do about it. Errors of other libraries are mapped to these where they
enter windrow, with the original as ``__cause__``.
"""

from __future__ import annotations

__all__ = [
    "PlanError",
    "SourceError",
    "StallError",
    "StateError",
    "TransformError",
    "WindrowError",
]


class WindrowError(Exception):
    """The root of all errors that windrow raises on purpose."""


class PlanError(WindrowError, ValueError):
    """What was asked for cannot be planned: an argument, a combination, or a size."""


class SourceError(WindrowError, OSError):
    """Data is missing, unreadable, corrupt, or differs in schema between files."""


class StateError(WindrowError, ValueError):
    """A saved state does not belong to this data, chain, or seed."""


class TransformError(WindrowError):
    """A user's function raised, or returned something that breaks its promise."""


class StallError(WindrowError, TimeoutError):
    """Nothing moved for too long; the message says who waits for whom."""
