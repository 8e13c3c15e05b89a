"""Runs the code blocks of a Markdown page as one program."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

__all__ = ["find_snippets", "run_snippets"]


def find_snippets(page: Path, language: str = "python") -> list[str]:
    """Return a page's code blocks, padded so that errors show the line numbers of the page."""
    text = page.read_text(encoding="utf-8")
    blocks = re.finditer(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return ["\n" * text.count("\n", 0, block.start(1)) + block[1] for block in blocks]


def run_snippets(page: Path) -> None:
    """Run a page's Python blocks in order, in one namespace."""
    snippets = find_snippets(page)
    assert snippets
    # under this name Ray pickles the functions of the examples by value, as it does for a script
    names: dict[str, Any] = {"__name__": "__main__"}
    for snippet in snippets:
        exec(compile(snippet, page.name, "exec"), names)
