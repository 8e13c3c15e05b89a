"""Number of examples of a property test of the shuffle: few by day, so that the folder takes seconds, all at night."""

from __future__ import annotations

from hypothesis import settings

__all__ = ["by_day"]

_NIGHTLY_EXAMPLES = 1_000


def by_day(count: int) -> settings:
    """Settings for at most ``count`` examples by day; the nightly profile keeps its number."""
    default = settings.default
    assert default is not None
    found = default.max_examples
    return settings(max_examples=found if found >= _NIGHTLY_EXAMPLES else min(count, found), deadline=None)
