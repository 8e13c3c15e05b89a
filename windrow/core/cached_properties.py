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

        It does not use ``__dict__``, which CPython 3.11 makes of an instance's values when it is asked for. Garbage
        collection can then let another thread ask for it, too, and both dictionaries own the same values: a crash.
        """

        def __get__(self, instance: Any, owner: Any = None) -> Any:
            """The value, computed once for each instance."""
            if instance is None:
                return self
            assert self.attrname is not None
            value = self.func(instance)
            # also of frozen instances; from now on, the attribute is found first
            object.__setattr__(instance, self.attrname, value)
            return value
