"""Number of examples of a property test: some of those given in CI, a multiple of them in nightly runs."""

from __future__ import annotations

from hypothesis import settings

__all__ = ["examples"]

_PROFILE_EXAMPLES = 100


def examples(count: int) -> settings:
    """Settings for ``count`` examples where the profile has a hundred, scaled with the profile."""
    default = settings.default
    assert default is not None
    return settings(max_examples=max(1, count * default.max_examples // _PROFILE_EXAMPLES))
