"""Number of examples of a property test of the shuffle: few by day, so that the folder takes seconds, all at night."""

from __future__ import annotations

from hypothesis import settings

__all__ = ["by_day"]

_CI_EXAMPLES = 60


def by_day(count: int) -> settings:
    """Settings for ``count`` examples in CI; other profiles, such as the nightly one, keep their number."""
    default = settings.default
    assert default is not None
    found = default.max_examples
    return settings(max_examples=count if found == _CI_EXAMPLES else found, deadline=None)
