"""How Sphinx builds the documentation: ``make docs``."""

import windrow

project = "windrow"
author = copyright = "The windrow developers"
release = version = windrow.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
]
exclude_patterns = ["examples"]
# ```py blocks are shown, ```python blocks are run by tests/test_docs.py
suppress_warnings = ["misc.highlighting_failure"]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "none"
autosummary_generate = False
napoleon_google_docstring = False
napoleon_use_rtype = False

html_theme = "furo"
html_title = f"windrow {version}"
html_static_path = ["_static"]
