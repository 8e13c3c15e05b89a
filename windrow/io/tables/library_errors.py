"""Errors of the libraries that read table formats, mapped to ours; checks of arguments that these formats share."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType

from windrow.core.errors import PlanError, WindrowError
from windrow.io.storage.credentials import safe_cause, source_error
from windrow.io.storage.error_causes import is_forbidden, is_unsupported

_TREE_DRAWING = re.compile(r"\x1b\[\d*m|↳")
_NO_FIXES: Mapping[str, str] = MappingProxyType({})


def plain_error(error: BaseException) -> BaseException:
    """Flatten an error to one line: some libraries render causes as a coloured tree."""
    text = str(error)
    return OSError(" ".join(_TREE_DRAWING.sub(" ", text).split())) if _TREE_DRAWING.search(text) else error


@contextmanager
def mapped_errors(
    what: str, secrets: Sequence[str], fix: str, fixes: Mapping[str, str] = _NO_FIXES
) -> Iterator[None]:
    """Map a library's errors to SourceError, without credentials.

    ``fixes`` has the fix for errors whose text contains a key, which often alone identifies them.
    """
    try:
        yield
    except (WindrowError, MemoryError):
        raise
    except Exception as error:
        text = str(error).lower()
        known = next((known for key, known in fixes.items() if key in text), _find_fix(error, fix))
        raise source_error(what, plain_error(error), known, tuple(secrets)) from safe_cause(error, secrets)


def _find_fix(error: BaseException, fix: str) -> str:
    if is_forbidden(error):
        return "grant read permission, or check the credentials and storage_options="
    if is_unsupported(error):
        return "upgrade the library, or write the table without what it does not support"
    return fix


def check_time_zone(argument: str, time: datetime.datetime) -> None:
    """Raise a PlanError for a time without a time zone."""
    if time.tzinfo is None:
        raise PlanError(f"{argument}={time!r} has no time zone: give it one (tzinfo=datetime.timezone.utc)")
