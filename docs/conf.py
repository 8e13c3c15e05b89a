"""How Sphinx builds the documentation: ``make docs``."""

import re
from typing import Any

import windrow

project = "windrow"
author = copyright = "The windrow developers"
release = version = windrow.__version__

extensions = [
    # myst_parser, and notebooks
    "myst_nb",
    "sphinx_design",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
]
exclude_patterns = ["examples"]
# ```py blocks are shown, ```python blocks are run by tests/test_docs.py
suppress_warnings = ["misc.highlighting_failure"]

# their outputs are stored with them; tests/test_notebook.py executes them
nb_execution_mode = "off"

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

# what docstrings name in single backticks
default_role = "py:obj"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
# one parameter a line where a signature is longer
python_maximum_signature_line_length = 80
autosummary_generate = False
napoleon_google_docstring = False
napoleon_use_rtype = False

html_theme = "furo"
html_title = f"windrow {version}"
html_static_path = ["_static"]
html_css_files = ["windrow.css"]


def list_methods(app: Any, page: str, source: list[str]) -> None:
    """Replace ``%METHODS Class%`` by a table of the public methods and attributes of a class."""

    def table(found: re.Match[str]) -> str:
        name = found[1]
        members = [each for each in dir(getattr(windrow, name)) if not each.startswith("_")]
        rows = "".join(f"   {name}.{each}\n" for each in members)
        return f".. autosummary::\n   :nosignatures:\n\n{rows}"

    source[0] = re.sub(r"%METHODS (\w+)%", table, source[0])


def setup(app: Any) -> None:
    """Connect what this file adds to Sphinx."""
    app.connect("source-read", list_methods)
