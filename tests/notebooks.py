"""Executes the notebook of the documentation, for its test; ``python -m tests.notebooks`` renews its outputs."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from tests.conftest import REPOSITORY

NOTEBOOK = REPOSITORY / "docs" / "tutorial" / "notebook.ipynb"
_TIMEOUT = 120


def execute(folder: Path) -> Any:
    """Execute the notebook in a folder, with the windrow of this checkout; returns it with its outputs."""
    import nbformat
    from nbclient import NotebookClient

    notebook: Any = nbformat.read(NOTEBOOK, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=_TIMEOUT,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
        record_timing=False,
    )
    paths = [str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
    client.execute(env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)})
    return notebook


def renew() -> None:
    """Write the outputs of an execution into the notebook."""
    import nbformat

    with tempfile.TemporaryDirectory() as folder:
        notebook = execute(Path(folder))
        # the folder is another one each time
        text = nbformat.writes(notebook).replace(folder, "/data")
    notebook = nbformat.reads(text, as_version=4)
    # without what depends on the machine
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    nbformat.write(notebook, NOTEBOOK)


if __name__ == "__main__":
    renew()
