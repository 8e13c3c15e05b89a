"""Imports libraries that only an extra of windrow installs, with an error that names the extra."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from windrow.core.errors import PlanError


def require(module: str, extra: str, why: str) -> Any:
    """Import a module that ``extra`` installs, or raise a `PlanError` with the command that installs it.

    ``why`` is the call or option that needs it.

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
