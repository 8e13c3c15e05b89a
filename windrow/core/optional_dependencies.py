"""Imports libraries that only an extra of windrow installs, with an error that names the extra."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from windrow.core.errors import PlanError

__all__ = ["require"]


def require(module: str, extra: str, why: str) -> Any:
    """Import a module of an extra.

    Parameters
    ----------
    module
        Module name.
    extra
        The extra of windrow that installs it.
    why
        The call or option that needs it: ``"from_polars()"``.

    Raises
    ------
    PlanError
        If it cannot be imported; gives the command that installs it.

    Examples
    --------
    >>> require("json", "json", "read_json()").dumps([1])
    '[1]'
    >>> require("no_such_module", "lance", "read_lance()")
    Traceback (most recent call last):
    ...
    windrow.core.errors.PlanError: read_lance() needs no_such_module, ...: pip install "windrow[lance]"
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise PlanError(
            f'{why} needs {module}, which cannot be imported here ({error}): pip install "windrow[{extra}]"'
        ) from error
