"""Attributes that do not exist: an AttributeError that names what to call instead, for names of other libraries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any


class NamesMissing:
    """Base class whose unknown attributes raise an AttributeError that says what to call instead.

    ``hasattr``, ``copy``, ``pickle`` and ``dir`` work as without it. Names that begin with an underscore, which
    protocols probe for, get the plain error at once.
    """

    if not TYPE_CHECKING:  # hidden from type checkers, so that they report unknown names

        def __getattr__(self, name):
            if hasattr(type(self), name):
                # a property raised an AttributeError: raise it again
                return object.__getattribute__(self, name)
            raise AttributeError(_describe(self, name))

    def _describe_missing(self, name: str) -> str | None:
        """What to call instead of a name that the tables do not have."""
        return None


def _describe(holder: NamesMissing, name: str) -> str:
    kind = type(holder)
    plain = f"{kind.__name__!r} object has no attribute {name!r}"
    if name.startswith("_"):
        return plain
    # imported here: a worker asks for no such name
    from windrow.core.names_elsewhere import find_advice

    kinds = [each.__name__ for each in kind.__mro__]
    advice = find_advice(kinds, name, dir(kind)) or holder._describe_missing(name)
    return plain if advice is None else f"{plain}: {advice}"


def describe_missing_function(name: str, present: Any) -> str:
    """The text of the AttributeError for a name that the package does not have."""
    from windrow.core.names_elsewhere import find_advice

    plain = f"module 'windrow' has no attribute {name!r}"
    advice = None if name.startswith("_") else find_advice(["windrow"], name, present)
    return plain if advice is None else f"{plain}: {advice}"
