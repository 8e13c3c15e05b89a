"""Number of examples of a property test: as given in CI, a multiple of it in nightly runs."""

from __future__ import annotations

from hypothesis import settings

__all__ = ["examples"]

_CI_EXAMPLES = 100


def examples(count: int) -> settings:
    """Settings for ``count`` examples in CI, scaled with the profile."""
    default = settings.default
    assert default is not None
    return settings(max_examples=max(1, count * default.max_examples // _CI_EXAMPLES))
