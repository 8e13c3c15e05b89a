"""How many examples a property takes: its own share in CI, as many times more at night."""

from __future__ import annotations

from hypothesis import settings

__all__ = ["examples"]

_CI_EXAMPLES = 100


def examples(count: int) -> settings:
    """Settings for ``count`` examples in CI, scaled as the profile is."""
    default = settings.default
    assert default is not None
    return settings(max_examples=max(1, count * default.max_examples // _CI_EXAMPLES))
