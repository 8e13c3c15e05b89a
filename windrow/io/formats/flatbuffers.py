"""Minimal FlatBuffers decoder for the headers of Arrow IPC messages, with every access bounds-checked.

Arrow parses these headers itself, but exposes them only after reading the message bodies.
See https://flatbuffers.dev/internals/.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

__all__ = ["FlatTable", "root_table"]


@dataclass(frozen=True)
class FlatTable:
    """A FlatBuffers table: values by slot, each optional.

    Offsets that point outside the buffer raise ``ValueError``.
    """

    data: bytes
    at: int

    def scalar(self, slot: int, form: str, default: int = 0) -> int:
        """A number; ``form`` is its `struct` format character."""
        place = self._place(slot)
        return default if place is None else int(_unpack(form, self.data, place))

    def table(self, slot: int) -> FlatTable | None:
        """A nested table."""
        place = self._place(slot)
        return None if place is None else FlatTable(self.data, place + _unpack("I", self.data, place))

    def structs(self, slot: int, form: str) -> list[tuple[Any, ...]]:
        """A vector of structs or numbers."""
        place = self._place(slot)
        if place is None:
            return []
        start = place + _unpack("I", self.data, place)
        stop = start + 4 + _unpack("I", self.data, start) * struct.calcsize("<" + form)
        if stop > len(self.data):
            raise ValueError("has a corrupt header: a vector ends outside of it")
        return list(struct.iter_unpack("<" + form, self.data[start + 4 : stop]))

    def _place(self, slot: int) -> int | None:
        vtable = self.at - _unpack("i", self.data, self.at)
        size = _unpack("H", self.data, vtable)
        offset = _unpack("H", self.data, vtable + 4 + 2 * slot) if 6 + 2 * slot <= size else 0
        return self.at + offset if offset else None


def root_table(data: bytes) -> FlatTable:
    """The root table of a buffer."""
    return FlatTable(data, _unpack("I", data, 0))


def _unpack(form: str, data: bytes, place: int) -> int:
    if not 0 <= place <= len(data) - struct.calcsize("<" + form):
        raise ValueError("has a corrupt header: an offset points outside of it")
    return int(struct.unpack_from("<" + form, data, place)[0])
