"""A filesystem whose errors contain all of its options, quoted in every way that libraries do."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote, quote_plus, unquote

from fsspec.implementations.memory import MemoryFileSystem

__all__ = ["STEPS", "ChattyFileSystem"]

# the steps that can fail
STEPS = ("connect", "list", "look", "look quietly", "read", "read quietly", "read again")


class ChattyFileSystem(MemoryFileSystem):  # type: ignore[misc]
    """A memory filesystem that fails at one step."""

    protocol = "chatty"
    cachable = False

    def __init__(self, fails: str = "", **options: Any) -> None:
        super().__init__(fails=fails, **options)
        self.fails, self.told = fails, options
        self._fail("connect")

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.removeprefix("chatty:/")))

    def _fail(self, step: str) -> None:
        if step != self.fails.split(" ")[0]:
            return
        texts = _texts(self.told)
        kind = ConnectionResetError if self.fails.endswith("again") else ValueError
        try:
            raise RuntimeError(" ".join(texts))
        except RuntimeError as error:
            if self.fails.endswith("quietly"):
                raise kind("no") from error
            raise kind("; ".join(map(quote, texts)) + f" {self.told!r} {json.dumps(self.told)}") from error

    def find(self, *args: Any, **options: Any) -> Any:
        self._fail("list")
        return super().find(*args, **options)

    def info(self, path: str, **options: Any) -> Any:
        if path.endswith(".parquet"):
            self._fail("look")
        return super().info(path, **options)

    def cat_file(self, *args: Any, **options: Any) -> Any:
        self._fail("read")
        return super().cat_file(*args, **options)


def _texts(options: Any) -> list[str]:
    if isinstance(options, dict):
        return [text for value in options.values() for text in _texts(value)]
    if isinstance(options, list):
        return [text for value in options for text in _texts(value)]
    _, _, user = options.partition("://")
    return [
        options,
        *map(unquote, user.split("@")[0].split(":")),
        quote_plus(options),
        f"http://{quote(options, safe='')}:{quote(options, safe='')}@host/",
    ]
