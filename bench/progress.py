"""Progress on a terminal as one updated line, in a log as a few lines."""

from __future__ import annotations

import time
from typing import TextIO

__all__ = ["ProgressLine"]

_WIDTH = 24
_LOG_SECONDS = 15.0


class ProgressLine:
    """Shows the current step, its progress and its duration.

    Parameters
    ----------
    stream
        Output stream; on a terminal the line is redrawn in place, otherwise a line
        is added at the start, every 15 s, and at the end.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._terminal = stream.isatty()
        self._title = ""
        self._began = self._shown = 0.0

    def start(self, title: str) -> None:
        """Begin a new line."""
        self._title = title
        self._began = self._shown = time.monotonic()
        self._write(f"{title} …", last=not self._terminal)

    def update(self, done: float, note: str) -> None:
        """Show the completed share (0 to 1) and a note."""
        now = time.monotonic()
        if now - self._shown < (0.1 if self._terminal else _LOG_SECONDS):
            return
        self._shown = now
        filled = round(_WIDTH * min(1.0, max(0.0, done)))
        bar = "█" * filled + "░" * (_WIDTH - filled)
        text = f"{self._title}  {bar} {done:4.0%}  {note}  {now - self._began:.0f} s"
        self._write(text, last=not self._terminal)

    def finish(self, note: str) -> None:
        """End the line."""
        self._write(f"{self._title}  {note}", last=True)

    def _write(self, text: str, last: bool) -> None:
        if self._terminal:
            self._stream.write("\r\x1b[2K" + text + ("\n" if last else ""))
        elif last:
            self._stream.write(text + "\n")
        self._stream.flush()
