"""Names in errors: what to call instead of attributes that do not exist, and public names for what does."""

from __future__ import annotations

from types import FunctionType
from typing import TYPE_CHECKING, Any, ClassVar

_OURS = "windrow."


class NamesMissing:
    """Base class whose unknown attributes raise an AttributeError that says what to call instead.

    ``hasattr``, ``copy``, ``pickle`` and ``dir`` work as without it. Names that begin with an underscore, which
    protocols probe for, get the plain error at once.

    Base classes divide the public ones into files. Python names the class of a method in a TypeError for wrong
    arguments, so methods of base classes have names without a class.
    """

    # what users call the class; None: its name
    _public_name: ClassVar[str | None] = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for base in cls.__mro__[1:]:
            if base.__module__.startswith(_OURS):
                for name, value in vars(base).items():
                    if not name.startswith("_"):
                        _rename(name, value)

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
    plain = f"{(kind._public_name or kind.__name__)!r} object has no attribute {name!r}"
    if name.startswith("_"):
        return plain
    # imported here: a worker asks for no such name
    from windrow.core.names_elsewhere import find_advice

    kinds = [each.__name__ for each in kind.__mro__]
    advice = find_advice(kinds, name, dir(kind)) or holder._describe_missing(name)
    return plain if advice is None else f"{plain}: {advice}"


def _rename(name: str, value: Any) -> None:
    function = getattr(value, "__func__", value)
    while isinstance(function, FunctionType):
        function.__qualname__ = name
        # of a decorated function, Python names the one inside
        function = getattr(function, "__wrapped__", None)


def describe_missing_function(name: str, present: Any) -> str:
    """The text of the AttributeError for a name that the package does not have."""
    from windrow.core.names_elsewhere import find_advice

    plain = f"module 'windrow' has no attribute {name!r}"
    advice = None if name.startswith("_") else find_advice(["windrow"], name, present)
    return plain if advice is None else f"{plain}: {advice}"
