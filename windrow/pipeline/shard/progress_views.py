"""Where live progress is drawn: two lines and a bar, redrawn in place, in a terminal or in a notebook's output."""

from __future__ import annotations

import io
import multiprocessing
import sys
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from rich.live import Live

_BAR_WIDTH = 24
# of a notebook's output, whose lines wrap where it is narrower
_NOTEBOOK_WIDTH = 160
# seen on light and on dark pages
_NOTEBOOK_BAR = {"width": 16, "style": "#9aa0a6", "complete_style": "#2f81f7", "finished_style": "#2da44e"}
_PAGE = (
    '<pre style="white-space:pre-wrap;margin:0;padding:0;border:0;background:none;color:inherit;font-size:0.9em;'
    'font-family:var(--jp-code-font-family,ui-monospace,monospace)">{code}</pre>'
)


class View(Protocol):
    """Redraws the progress of one epoch."""

    def update(self, place: str, rest: str, step: int, steps: int | None) -> None:
        """Draw two lines of text, and a bar of ``step`` out of ``steps``; None: it is unknown how many."""

    def stop(self) -> None:
        """Leave what was drawn last."""


def in_notebook() -> bool:
    """Whether a notebook shows the output of this process, as rich finds out."""
    # without IPython there is none, and no need to import rich; a notebook's workers have no output of their own
    if "IPython" not in sys.modules or multiprocessing.parent_process() is not None:
        return False
    from rich import get_console

    return get_console().is_jupyter


def make_view() -> View:
    """Return the view for where this process runs; nothing is drawn yet."""
    return _NotebookView() if in_notebook() else _TerminalView()


class _TerminalView:
    """Redraws lines of standard error."""

    def __init__(self) -> None:
        self._live: Live | None = None

    def update(self, place: str, rest: str, step: int, steps: int | None) -> None:
        from rich.console import Console
        from rich.live import Live

        if self._live is None:
            # nothing else that the program prints is redirected
            self._live = Live(
                console=Console(stderr=True),
                auto_refresh=False,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()
        self._live.update(_layout(place, rest, step, steps, pulse=not steps, width=_BAR_WIDTH), refresh=True)

    def stop(self) -> None:
        if self._live is not None:
            self._live.stop()


class _NotebookView:
    """Replaces one output of the cell that runs, as HTML and as text; rich's own way would need ipywidgets."""

    def __init__(self) -> None:
        self._handle: Any = None

    def update(self, place: str, rest: str, step: int, steps: int | None) -> None:
        from IPython.display import display
        from rich.console import Console

        console = Console(
            file=io.StringIO(),
            record=True,
            force_terminal=True,
            force_jupyter=False,
            color_system="truecolor",
            width=_NOTEBOOK_WIDTH,
        )
        console.print(_layout(place, rest, step, steps, pulse=False, **_NOTEBOOK_BAR))
        shown = {
            "text/plain": console.export_text(clear=False).rstrip(),
            "text/html": console.export_html(inline_styles=True, code_format=_PAGE),
        }
        if self._handle is None:
            self._handle = display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)

    def stop(self) -> None:
        """The output stays."""


def _layout(place: str, rest: str, step: int, steps: int | None, *, pulse: bool, **look: Any) -> Any:
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    line = Table.grid(padding=(0, 1))
    bar = ProgressBar(total=steps or None, completed=step, pulse=pulse, **look)
    line.add_row(Text(place), *([bar] if steps or pulse else []))
    return Group(line, Text(rest, overflow="ellipsis", no_wrap=True))
