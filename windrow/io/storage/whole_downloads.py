"""Files of servers that know no ranges, downloaded as a whole into temporary files: once per listing and process."""

from __future__ import annotations

import os
import tempfile
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO

from windrow.core.system.files import pread
from windrow.core.system.processes import call_in_forked_children

KEPT_DOWNLOADS = 16


class _Content:
    """The bytes of a temporary file without a name, which goes with the last reference to it."""

    def __init__(self, fill: Callable[[IO[bytes]], None]) -> None:
        with tempfile.TemporaryFile() as file:
            fill(file)
            file.flush()
            self._descriptor = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._descriptor)

    def read(self, start: int, stop: int) -> bytes:
        return pread(self._descriptor, stop - start, start)


@dataclass
class _Download:
    lock: threading.Lock = field(default_factory=threading.Lock)
    content: _Content | None = None


class _Downloads:
    """Files that were downloaded as a whole; the last ones that were used."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, str], _Download] = OrderedDict()

    def find(self, key: tuple[str, str]) -> _Content | None:
        with self._lock:
            known = self._known.get(key)
            if known is None:
                return None
            self._known.move_to_end(key)
            return known.content

    def expect(self, key: tuple[str, str]) -> None:
        """Remember that a file can only be downloaded."""
        with self._lock:
            self._known.setdefault(key, _Download())
            while len(self._known) > KEPT_DOWNLOADS:
                self._known.popitem(last=False)

    def is_expected(self, key: tuple[str, str]) -> bool:
        with self._lock:
            return key in self._known

    def get(self, key: tuple[str, str], fill: Callable[[IO[bytes]], None]) -> _Content:
        """The content of a key, which the first call fills."""
        self.expect(key)
        with self._lock:
            known = self._known.setdefault(key, _Download())
            self._known.move_to_end(key)
        with known.lock:
            if known.content is None:
                known.content = _Content(fill)
            return known.content

    def read(self, key: tuple[str, str], content: _Content, start: int, stop: int) -> bytes:
        """The bytes of a range; a content that lacks some is downloaded again at its next read.

        Where an answer states no length, a connection that was cut looks like the end of the file.
        """
        data = content.read(start, stop)
        if len(data) < stop - start:
            with self._lock:
                known = self._known.get(key)
                if known is not None and known.content is content:
                    known.content = None
        return data


DOWNLOADS = _Downloads()
# another thread can hold a lock when the process is forked
call_in_forked_children(DOWNLOADS.forget)
