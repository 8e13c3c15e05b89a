"""``cached_property`` without a lock, which a forked process could find taken forever."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or sys.version_info >= (3, 12):
    from functools import cached_property as cached_property
else:

    class cached_property(functools.cached_property):  # noqa: N801
        """That of Python 3.12: before, one lock for all instances is held while a value is computed.

        A process that is forked in that time, such as a DataLoader's worker, has the lock but not the thread that
        would release it. Two threads may compute a value twice here; both values are the same.
        """

        def __get__(self, instance: Any, owner: Any = None) -> Any:
            """The value, computed once for each instance."""
            if instance is None:
                return self
            values, name = instance.__dict__, self.attrname
            if name not in values:
                values[name] = self.func(instance)
            return values[name]
