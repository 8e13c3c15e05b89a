"""Keeping credentials out of every text: errors, names, and saved manifests."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from windrow.core.errors import SourceError

__all__ = ["find_secrets", "redact", "safe_cause", "source_error", "without_user"]

_SECRET_KEY = re.compile(r"key|secret|token|pass|cred|sas|auth|connection|user", re.IGNORECASE)
_USER_INFO = re.compile(r"(?<=://)[^/@]*@")


def without_user(url: str) -> str:
    """A URL without the user and password it may carry."""
    return _USER_INFO.sub("", url)


def find_secrets(options: Any) -> tuple[str, ...]:
    """Every text in storage options that may be a credential, for keeping it out of errors."""

    def search(value: Any, secret: bool) -> Iterator[str]:
        if isinstance(value, Mapping):
            for key, inner in value.items():
                yield from search(inner, secret or _SECRET_KEY.search(str(key)) is not None)
        elif secret and isinstance(value, str) and value:
            yield value

    return tuple(search(options, False))


def redact(text: str, secrets: Iterable[str]) -> str:
    """A text with ``***`` for every secret."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    return without_user(text)


def safe_cause(error: BaseException, secrets: Iterable[str]) -> BaseException | None:
    """The error to raise from; None when its own text holds a secret."""
    return error if redact(str(error), secrets) == str(error) else None


def source_error(what: str, error: BaseException, remedy: str, secrets: Collection[str]) -> SourceError:
    """A foreign error in windrow's words, with no secret in it."""
    why = redact(str(error) or type(error).__name__, secrets).strip().rstrip(".")
    return SourceError(f"{what}: {why}; {remedy}")
